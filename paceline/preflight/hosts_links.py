"""The links between hosts, measured over plain sockets: bytes per second one way, and the time there and back.

with LinkServer("10.0.0.2", word) as server:                # on every host
    ...
measure_link("10.0.0.2", server.port, word, seconds=0.5)    -> Speed(bytes_per_s=1.2e9, latency_s=45e-6)

The receiver counts, for as long as it was told: what lies in buffers at the sender's end was not sent. Bytes as they are, without
messages: the digest of the word and the seconds, an answer, single bytes there and back, then as many as go through, and their count.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from paceline.launch.hosts.endpoint import accept_next

CONNECT_S = 5.0
_ANSWER_S = 5.0
_GREETING_S = 2.0
_LOOK_S = 0.2
_PINGS = 20
_PIECE = 1 << 20
LONGEST_S = 5.0
_NO_LINGER = struct.pack("ii", 1, 0)
_WISH = struct.Struct("!32sd")
_COUNT = struct.Struct("!Qd")
_READY = b"r"


class LinkLost(Exception):
    """The other side went away in the middle, or did not want us; says why."""


@dataclass(frozen=True)
class Speed:
    """Of one direction."""

    bytes_per_s: float
    latency_s: float
    """there and back, the median"""


class LinkServer:
    """Answers those who measure, in a thread, one after another; strangers without the word are sent away."""

    def __init__(self, address: str, word: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family)
        self._server.settimeout(_LOOK_S)
        self._word = _digest(word)
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
                connection = accept_next(self._server)
            except OSError:
                return
            if connection is None:
                continue
            with connection, contextlib.suppress(OSError, LinkLost):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_GREETING_S)
        word, seconds = _WISH.unpack(_read(connection, _WISH.size))
        if word != self._word:
            return
        connection.sendall(_READY)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_ANSWER_S)
        for _ in range(_PINGS):
            connection.sendall(connection.recv(1))
        buffer = bytearray(_PIECE)
        if not connection.recv_into(buffer):
            return
        began = time.monotonic()
        took, counted = 0.0, 0  # from the first piece on: before it we have waited for a start, not for the link
        while took < min(LONGEST_S, seconds):
            received = connection.recv_into(buffer)
            if not received:
                return
            counted += received
            took = time.monotonic() - began
        connection.sendall(_COUNT.pack(counted, took))
        # Until the other side has read that and closes: a connection that is closed over unread bytes takes the answer with it.
        connection.settimeout(_ANSWER_S)
        ending = time.monotonic() + _ANSWER_S
        while time.monotonic() < ending and connection.recv_into(buffer):
            pass


def measure_link(address: str, port: int, word: str, seconds: float) -> Speed:
    """From here to a LinkServer; OSError or LinkLost where there is no way."""
    with socket.create_connection((address, port), timeout=CONNECT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_ANSWER_S)
        connection.sendall(_WISH.pack(_digest(word), seconds))
        _read(connection, len(_READY))
        latency_s = statistics.median(_ping(connection) for _ in range(_PINGS))
        piece = memoryview(bytes(_PIECE))
        connection.setblocking(False)
        deadline = time.monotonic() + seconds + _ANSWER_S
        while time.monotonic() < deadline:
            readable, writable, _ = select.select([connection], [connection], [], 0.2)
            if readable:
                connection.settimeout(_ANSWER_S)
                counted, took = _COUNT.unpack(_read(connection, _COUNT.size))
                # What was not sent yet is of no use to anybody: not sent after the measurement, into the next one.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                return Speed(counted / max(took, 1e-9), latency_s)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    connection.send(piece)
    raise LinkLost(f"the bytes did not arrive within {seconds + _ANSWER_S:g} s")


def _ping(connection: socket.socket) -> float:
    began = time.monotonic()
    connection.sendall(b"p")
    _read(connection, 1)
    return time.monotonic() - began


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise LinkLost("the connection was closed")
        data += piece
    return data


def _digest(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()
