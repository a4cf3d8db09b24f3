"""Where hosts come in: accepts connections, holds each until it has said who it is, and sends away whoever does not in time.

    reception = Reception(listener, inbox)
    reception.open()
    reception.poll()                     # those who came since can be heard in the inbox
    reception.release(channel)           -> True: it was a stranger until now
    reception.hold(channel, for_s=1.0)   # it is told something, and then goes
    reception.close()

One thread accepts; everything else happens in the caller's.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

from paceline.launch.hosts.channel import Channel, Gone, Inbox
from paceline.launch.hosts.endpoint import accept_next

_POLL_S = 0.05
_ACCEPT_S = 0.5
_HELLO_S = 10.0
_FAREWELL_S = 2.0


class Reception:
    """The listening socket and the connections of strangers; close it in every case."""

    def __init__(self, listener: socket.socket, inbox: Inbox) -> None:
        self._listener = listener
        self._inbox = inbox
        self._knocks: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._strangers: dict[Channel, float] = {}
        """until when each may stay"""
        self._is_closed = False
        self._acceptor = threading.Thread(target=self._accept, name="hosts-accept", daemon=True)

    @property
    def address(self) -> str:
        return str(self._listener.getsockname()[0])

    @property
    def place(self) -> str:
        return f"{self.address}:{self._listener.getsockname()[1]}"

    def open(self) -> None:
        self._listener.settimeout(_ACCEPT_S)
        self._acceptor.start()

    def poll(self) -> None:
        """Lets in who knocked, and sends away who has said nothing."""
        now = time.monotonic()
        with contextlib.suppress(queue.Empty):
            while True:
                self._strangers[Channel(self._knocks.get_nowait(), self._inbox)] = now + _HELLO_S
        for channel in [each for each, until in self._strangers.items() if now > until]:
            del self._strangers[channel]
            channel.close()

    def release(self, channel: Channel) -> bool:
        """It is no stranger any more; whether it was one."""
        return self._strangers.pop(channel, None) is not None

    def hold(self, channel: Channel, for_s: float) -> None:
        """What it was told is sent before the connection is closed."""
        self._strangers[channel] = time.monotonic() + for_s

    def see_off(self, channels: list[Channel]) -> None:
        """Whoever hears a goodbye closes the connection; what we close first may not arrive."""
        for channel in channels:
            self.hold(channel, _FAREWELL_S)
        deadline = time.monotonic() + _FAREWELL_S
        while self._strangers and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    channel, message = self._inbox.get_nowait()
                    if isinstance(message, Gone) and self.release(channel):
                        channel.close()

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):  # wakes who accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(timeout=2)
        self._listener.close()
        for channel in self._strangers:
            channel.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._knocks.get_nowait().close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection = accept_next(self._listener)
            except OSError:
                return
            if connection is not None:
                self._knocks.put(connection)
