"""Where the hosts of a run meet (`--rdzv HOST:PORT`), how many they may be (`--nnodes`), and whether this host is the one that leads.

parse_endpoint("node1:29500")     -> Endpoint(host="node1", port=29500)
parse_count("1:2")                -> Count(least=1, most=2)
open_listener(endpoint)           -> a listening socket: this host has the address; None: another one has, or the port is taken here
"""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass

from paceline.errors import RendezvousError, UsageError

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
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isdecimal() and port.isascii()) or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"{text!r} is not HOST:PORT", where, "write it like --rdzv node1:29500, the same on every host"
        )
    if host in ("0.0.0.0", "::", "*"):
        do = "name the address of the leading host, as the others reach it"
        raise UsageError(f"{text} names every address of a host, and so none that others can reach", where, do)
    return Endpoint(host, int(port))


def parse_count(value: int | str, where: str = "launch.nnodes") -> Count:
    least, _, most = str(value).partition(":")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise UsageError(f"{value!r} is no number of hosts", where, "write it like --nnodes 2, or --nnodes 1:2")
    count = Count(int(least), int(most or least))
    if not 1 <= count.least <= count.most:
        raise UsageError(f"{value} is no range of hosts", where, "write MIN:MAX with 1 <= MIN <= MAX")
    return count


def resolve(endpoint: Endpoint, where: str = "launch.rdzv") -> list[str]:
    """The addresses behind the name, in the order in which the system prefers them."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        what = f"the name {endpoint.host} cannot be resolved on {socket.gethostname()} ({error})"
        raise RendezvousError(what, where, "name the leading host by its address, or mend /etc/hosts or DNS") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def open_listener(endpoint: Endpoint) -> socket.socket | None:
    """A socket on the first address of the endpoint that is this host's own; None: this host cannot lead."""
    for address in resolve(endpoint):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A leader that was started again must not wait until the system has forgotten the old connections.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, endpoint.port))
            listener.listen(_WAITING)
            return listener
        except OSError as error:
            with contextlib.suppress(OSError):
                listener.close()
            if error.errno == errno.EACCES:
                do = "choose a port above 1023, the same on every host"
                raise RendezvousError(f"port {endpoint.port} may not be opened here", "launch.rdzv", do) from error
            # Not the next address then: whoever listens on this one may lead the same run.
            if error.errno == errno.EADDRINUSE:
                return None
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return None


def find_free_port(address: str) -> int:
    """A port of this address that nobody listens on at this moment."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
