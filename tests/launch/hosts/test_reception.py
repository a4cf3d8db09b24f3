"""Who comes in, although something goes wrong at the door."""

from __future__ import annotations

import errno
import queue
import socket
import threading

import pytest

from paceline.launch.hosts.channel import Channel, Inbox, hear
from paceline.launch.hosts.endpoint import accept_next
from paceline.launch.hosts.message import End
from paceline.launch.hosts.reception import Reception

pytestmark = pytest.mark.timeout(30)


class Shaky(socket.socket):
    """Accepts only after these."""

    troubles: tuple[int, ...] = (errno.ECONNABORTED, errno.EMFILE)

    def accept(self) -> tuple[socket.socket, object]:
        if self.troubles:
            number, *rest = self.troubles
            self.troubles = tuple(rest)
            raise OSError(number, "not now")
        return super().accept()


def listening() -> Shaky:
    server = Shaky(socket.AF_INET, socket.SOCK_STREAM)
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def test_one_that_cannot_be_accepted_does_not_close_the_door() -> None:
    inbox: Inbox = queue.SimpleQueue()
    listener = listening()
    reception = Reception(listener, inbox)
    reception.open()
    try:
        guest = Channel(socket.create_connection(listener.getsockname(), timeout=5), queue.SimpleQueue())
        guest.send(End(2, "here"))
        heard = None
        for _ in range(50):
            reception.poll()
            heard = hear(inbox, 0.1)
            if heard is not None:
                break
        assert heard == End(2, "here")
        guest.close()
    finally:
        reception.close()
    assert "hosts-accept" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("shuts", [True, False])
def test_a_closed_listener_is_the_end(shuts: bool) -> None:
    listener = listening()
    assert [accept_next(listener), accept_next(listener)] == [None, None]
    if shuts:
        listener.shutdown(socket.SHUT_RDWR)
    else:
        listener.close()
    with pytest.raises(OSError, match=r"Invalid argument|Bad file descriptor"):
        accept_next(listener)
    listener.close()
