"""Where the hosts of a run meet (`--rdzv HOST:PORT`), how many they may be (`--nnodes`), and whether this host is the one that leads.

parse_endpoint("node1:29500")     -> Endpoint(host="node1", port=29500)
parse_count("1:2")                -> Count(least=1, most=2)
open_listener(endpoint)           -> a listening socket: this host has the address; None: another one has, or the port is taken here
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from paceline.errors import RendezvousError, UsageError
from paceline.launch.hosts.address import own_address, parse_meeting_point

_WAITING = 64


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
    host, port = parse_meeting_point(text, where)
    if host in ("0.0.0.0", "::", "*"):
        do = "name the address of the leading host, as the others reach it"
        raise UsageError(f"{text} names every address of a host, and so none that others can reach", where, do)
    return Endpoint(host, port)


def parse_count(value: int | str, where: str = "launch.nnodes") -> Count:
    least, _, most = str(value).partition(":")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise UsageError(f"{value!r} is no number of hosts", where, "write it like --nnodes 2, or --nnodes 1:2")
    count = Count(int(least), int(most or least))
    if not 1 <= count.least <= count.most:
        raise UsageError(f"{value} is no range of hosts", where, "write MIN:MAX with 1 <= MIN <= MAX")
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


def find_free_port(address: str) -> int:
    """A port of this address that nobody listens on at this moment."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
