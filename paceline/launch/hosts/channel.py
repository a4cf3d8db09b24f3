"""One connection between two hosts: messages in, messages out, a beat every second, and how long nothing was heard.

    channel = Channel(socket, inbox)
    channel.send(End(2, "host b was lost"))      # never blocks; a connection that fails is told as Gone
    hear(inbox, within_s=5)                      # the next that is no Beat; None: nothing came
    inbox.get()   -> (channel, Beat()) or (channel, Gone("closed the connection"))

A connection that takes nothing any more is no failure of its own: whether silence means loss is for the owner to say, on both sides by
the same measure. Clocks of two hosts are never compared.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from dataclasses import dataclass

from paceline.launch.hosts.message import LONGEST, Beat, Message, Pulses, WireError, decode, encode

_BEAT_S = 1.0
_LOOK_S = 0.5
_FLUSH_S = 0.5
_MOST_WAITING = 8
"""messages, beyond which pulses are left out: the next ones say more"""


@dataclass(frozen=True)
class Gone:
    """The connection is over, as far as this side can tell."""

    why: str
    is_foreign: bool = False
    """the other side said something that is no message of ours"""


Inbox = queue.SimpleQueue[tuple["Channel", Message | Gone]]


def hear(inbox: Inbox, within_s: float) -> Message | Gone | None:
    """The next message that is more than a sign of life, where a queue has one connection; None: there was none in time."""
    until = time.monotonic() + within_s
    while True:
        try:
            _, message = inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None
        if not isinstance(message, Beat):
            return message


class Channel:
    """Both directions of a connected socket; close it in every case."""

    def __init__(self, connection: socket.socket, inbox: Inbox, *, beat_s: float = _BEAT_S) -> None:
        self._socket = connection
        self._inbox = inbox
        self._beat_s = beat_s
        self._heard = time.monotonic()
        self._closed = threading.Event()
        self._failing = threading.Lock()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_LOOK_S)
        self._writer = threading.Thread(target=self._write, name="host-writer", daemon=True)
        self._writer.start()
        threading.Thread(target=self._listen, name="host-reader", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """How long nothing was heard."""
        return time.monotonic() - self._heard

    def forgive(self) -> None:
        """It was we who did not listen (stopped, or starved): the silence begins anew."""
        self._heard = time.monotonic()

    def send(self, message: Message) -> None:
        """Puts a message on its way."""
        if not (isinstance(message, Pulses) and self._outbox.qsize() > _MOST_WAITING):
            self._outbox.put(encode(message))

    def close(self) -> None:
        """What was said last is sent first, if that is possible at once."""
        self._outbox.put(None)
        self._writer.join(_FLUSH_S)
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _write(self) -> None:
        while not self._closed.is_set():
            try:
                data = self._outbox.get(timeout=self._beat_s)
            except queue.Empty:
                data = encode(Beat())
            if data is None:
                return
            try:
                self._send_whole(data)
            except OSError as error:
                self._fail(f"the connection broke ({error.strerror or error})")

    def _send_whole(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                view = view[self._socket.send(view) :]

    def _listen(self) -> None:
        pending = b""
        while not self._closed.is_set():
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError as error:
                self._fail(f"the connection broke ({error.strerror or error})")
                return
            if not data:
                self._fail("it closed the connection")
                return
            self._heard = time.monotonic()
            *lines, pending = (pending + data).split(b"\n")
            try:
                if len(pending) > LONGEST:
                    raise WireError("a line without an end")
                for line in lines:
                    self._inbox.put((self, decode(line)))
            except WireError as error:
                self._fail(str(error), is_foreign=True)
                return

    def _fail(self, why: str, *, is_foreign: bool = False) -> None:
        with self._failing:
            if not self._closed.is_set():
                self._closed.set()
                self._inbox.put((self, Gone(why, is_foreign)))
