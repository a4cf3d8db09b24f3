"""A connection between two hosts that are being checked: one JSON object in a line, and a limit on every wait.

wire = Wire(connect("10.0.0.1", 29500, within_s=5))
wire.send("hello", v=1); wire.receive(within_s=2)   -> {"kind": "welcome", …}, or WireLost with the reason
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

_SEND_S = 5.0
_MOST_BYTES = 8 << 20
"""of one line: the links of a hundred hosts fit, and a stranger cannot fill our memory"""


class WireLost(Exception):
    """Nothing more comes from the other side; says why."""


def connect(address: str, port: int, within_s: float) -> socket.socket:
    """OSError where nobody answers in time."""
    connection = socket.create_connection((address, port), timeout=within_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def listen(address: str, port: int) -> socket.socket:
    """A server there; port 0: any free one. Its `accept` waits for no longer than a moment."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, port), family=family)
    server.settimeout(0.2)
    return server


class Wire:
    """One side of the connection; closed in every case."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = b""

    def send(self, kind: str, /, **values: Any) -> None:
        self._connection.settimeout(_SEND_S)
        try:
            self._connection.sendall(json.dumps({"kind": kind} | values).encode() + b"\n")
        except OSError as error:
            raise WireLost(_describe(error)) from error

    def receive(self, within_s: float) -> dict[str, Any]:
        """The next object."""
        deadline = time.monotonic() + within_s
        while b"\n" not in self._pending:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                piece = self._connection.recv(1 << 16)
            except OSError as error:
                raise WireLost(
                    f"silent for {within_s:g} s" if isinstance(error, TimeoutError) else _describe(error)
                ) from error
            self._pending += piece
            if not piece:
                raise WireLost("the connection was closed")
            if len(self._pending) > _MOST_BYTES or time.monotonic() > deadline:
                raise WireLost("what came is not of a paceline preflight")
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
            raise WireLost("what came is not of a paceline preflight")
        return found

    def is_gone(self) -> bool:
        """Whether the other side has closed it; nothing is taken from what it may have sent."""
        self._connection.setblocking(False)
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()


def _describe(error: OSError) -> str:
    return "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
