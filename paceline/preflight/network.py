"""What the ranks of one machine need to find each other: the loopback interface, this host's name, the interfaces somebody named."""

from __future__ import annotations

import socket
import time

from paceline.config.nearest import nearest
from paceline.launch.hosts.address import ask_addresses
from paceline.preflight.check import Check, fail, ok, warn
from paceline.preflight.subject import Subject

_WAIT_S = 1.0


def check_network(subject: Subject) -> list[Check]:
    return [_loopback(), _hostname(), *_interfaces(subject)]


def _loopback() -> Check:
    """The rendezvous and the store of the ranks are at 127.0.0.1: a connection there, to ourselves."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_WAIT_S).close()
    except OSError as error:
        what = f"no connection to 127.0.0.1 ({error.strerror or error}): ranks meet there"
        return fail("loopback", what, "ip link set lo up")
    return ok("loopback", "127.0.0.1 answers")


def _hostname() -> Check:
    """gloo asks for this host's own name, and takes the loopback where it gets no answer; the asking may take long."""
    name = socket.gethostname()
    began = time.monotonic()
    addresses = ask_addresses(name, _WAIT_S)
    do = f"add a line `127.0.0.1 {name}` to /etc/hosts"
    if addresses is None:
        what = f"no answer for {name} within {_WAIT_S:g} s: each rank waits for that at its start"
        return warn("hostname", what, do, name=name)
    if not addresses:
        what = f"{name} does not resolve: gloo takes the loopback, other programs (torchrun --standalone) hang"
        return warn("hostname", what, do, name=name)
    took_ms = round(1000 * (time.monotonic() - began), 1)
    return ok("hostname", f"{name} is {addresses[0]}", name=name, addresses=addresses, resolve_ms=took_ms)


def _interfaces(subject: Subject) -> list[Check]:
    """gloo ends with an error where it is told to use an interface that is not there; every group has gloo in it."""
    given = subject.environment.get("GLOO_SOCKET_IFNAME", "")
    if not given or not subject.has_group:
        return []
    here = [name for _, name in socket.if_nameindex()]
    missing = [name for name in given.split(",") if name not in here]
    if missing:
        close = nearest(missing[0], here)
        what = f"GLOO_SOCKET_IFNAME={given}, and there is no interface {missing[0]} (there are: {', '.join(here)})"
        return [fail("interface", what, f"GLOO_SOCKET_IFNAME={close}" if close else "unset GLOO_SOCKET_IFNAME")]
    return [ok("interface", f"GLOO_SOCKET_IFNAME={given}")]
