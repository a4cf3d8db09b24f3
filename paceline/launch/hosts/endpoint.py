"""Where the hosts of a run meet (`--rdzv HOST:PORT`), how many they may be (`--nnodes`), and whether this host is the one that leads.

parse_endpoint("node1:29500")     -> Endpoint(host="node1", port=29500)
parse_count("1:2")                -> Count(least=1, most=2)
open_listener(endpoint)           -> a listening socket: this host has the address; None: another one has, or the port is taken here
accept_next(listener)             -> the connection of who comes next; None: not yet
"""

from __future__ import annotations

import errno
import re
import socket
import time
from dataclasses import dataclass

from paceline.errors import RendezvousError, UsageError
from paceline.launch.hosts.address import own_address, parse_meeting_point

_WAITING = 64
_MOST = 1000
_RETRY_S = 0.1
_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
"""what accept says of a listener that was closed, or shut down"""


@dataclass(frozen=True)
class Endpoint:
    """An address that every host can reach."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Count:
    """With how many hosts a run may train."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


def parse_endpoint(text: str, where: str = "launch.rdzv") -> Endpoint:
    return Endpoint(*parse_meeting_point(text, where))


def parse_count(value: int | str, where: str = "launch.nnodes") -> Count:
    """N, or MIN:MAX."""
    found = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", str(value).strip())
    count = Count(int(found[1]), int(found[2] or found[1])) if found else Count(0, 0)
    if not 1 <= count.least <= count.most <= _MOST:
        what = f"{value!r} is not a number of hosts from 1 to {_MOST}"
        raise UsageError(what, where, "write it like --nnodes 2, or --nnodes 1:2")
    return count


def open_listener(endpoint: Endpoint, where: str = "launch.rdzv") -> socket.socket | None:
    """A socket on the address of the endpoint where that is this host's own; None: this host cannot lead."""
    address = own_address(endpoint.host, where)
    if address is None:
        return None
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A leader that was started again must not wait until the system has forgotten the old connections.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, endpoint.port))
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        do = "choose a port above 1023, the same on every host"
        what = f"cannot listen at {endpoint} ({error.strerror})"
        raise RendezvousError(what, where, do) from error
    return listener


def accept_next(listener: socket.socket) -> socket.socket | None:
    """Who comes next; None: nobody in time, or this one could not be let in; OSError where the listener is closed."""
    try:
        return listener.accept()[0]
    except TimeoutError:
        return None
    except OSError as error:
        if error.errno in _CLOSED:
            raise
        # Somebody hung up while he waited, or this process has no descriptor left at the moment: the next one may be let in.
        time.sleep(_RETRY_S)
        return None


def find_free_port(address: str) -> int:
    """A port of this address that nobody listens on at this moment."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
