"""The links between hosts, measured over plain sockets: bytes per second one way, and the time there and back.

with LinkServer("10.0.0.2", word) as server:                # on every host
    ...
measure_link("10.0.0.2", server.port, word, seconds=0.5)    -> Speed(bytes_per_s=1.2e9, latency_s=45e-6)

The receiver counts, for as long as it was told: what lies in buffers at the sender's end was not sent.
"""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from paceline.preflight.hosts_wire import Wire, WireLost, connect, listen

CONNECT_S = 5.0
_ANSWER_S = 5.0
_GREETING_S = 2.0
_PINGS = 20
_PIECE = 1 << 20
_MOST_S = 5.0
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Speed:
    """Of one direction."""

    bytes_per_s: float
    latency_s: float
    """there and back, the median"""


class LinkServer:
    """Answers those who measure, in a thread, one after another; strangers without the word are sent away."""

    def __init__(self, address: str, word: str) -> None:
        self._server = listen(address, 0)
        self._word = word
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="link-server", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def __enter__(self) -> LinkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed.set()
        self._thread.join(_ANSWER_S)
        self._server.close()

    def _serve(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with connection, contextlib.suppress(OSError, WireLost):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        wire = Wire(connection)
        wish = wire.receive(_GREETING_S)
        seconds = wish.get("seconds")
        if wish.get("word") != self._word or not isinstance(seconds, int | float):
            return
        wire.send("ready")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_ANSWER_S)
        for _ in range(_PINGS):
            connection.sendall(connection.recv(1))
        buffer = bytearray(_PIECE)
        if not connection.recv_into(buffer):
            return
        began = time.monotonic()
        took, counted = 0.0, 0  # from the first piece on: before it we have waited for a start, not for the link
        while took < min(_MOST_S, seconds):
            received = connection.recv_into(buffer)
            if not received:
                return
            counted += received
            took = time.monotonic() - began
        wire.send("counted", bytes=counted, seconds=took)
        # Until the other side has read that and closes: a connection that is closed over unread bytes takes the answer with it.
        connection.settimeout(_ANSWER_S)
        ending = time.monotonic() + _ANSWER_S
        while time.monotonic() < ending and connection.recv_into(buffer):
            pass


def measure_link(address: str, port: int, word: str, seconds: float) -> Speed:
    """From here to a LinkServer; OSError or WireLost where there is no way."""
    with connect(address, port, CONNECT_S) as connection:
        wire = Wire(connection)
        wire.send("link", word=word, seconds=seconds)
        wire.receive(_ANSWER_S)
        connection.settimeout(_ANSWER_S)
        latency_s = statistics.median(_ping(connection) for _ in range(_PINGS))
        piece = memoryview(bytes(_PIECE))
        connection.setblocking(False)
        deadline = time.monotonic() + seconds + _ANSWER_S
        while time.monotonic() < deadline:
            readable, writable, _ = select.select([connection], [connection], [], 0.2)
            if readable:
                counted = wire.receive(_ANSWER_S)
                # What was not sent yet is of no use to anybody: not sent after the measurement, into the next one.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                return Speed(float(counted["bytes"]) / float(counted["seconds"]), latency_s)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    connection.send(piece)
    raise WireLost(f"the bytes did not arrive within {seconds + _ANSWER_S:g} s")


def _ping(connection: socket.socket) -> float:
    began = time.monotonic()
    connection.sendall(b"p")
    if not connection.recv(1):
        raise WireLost("the connection was closed")
    return time.monotonic() - began
