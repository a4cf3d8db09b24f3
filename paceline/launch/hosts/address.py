"""Addresses of hosts: what a name resolves to, which interface has an address, which address leads to another host.

parse_meeting_point("node-a:29500")            -> ("node-a", 29500)
local_address_towards("10.0.0.1", 29500)       -> "10.0.0.7"
interface_of("10.0.0.7")                       -> "eth0"
check_interface("eht0")                        # UsageError: there is no interface eht0 (there are: eth0 10.0.0.7, lo 127.0.0.1)
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Mapping

import psutil

from paceline.config.nearest import nearest
from paceline.errors import UsageError

_RESOLVE_S = 5.0
_MEETING_POINT = re.compile(
    r"\[(?P<six>[0-9a-fA-F:.%\w]+)\]:(?P<six_port>[0-9]{1,9})|(?P<host>[^\s:/]+):(?P<port>[0-9]{1,9})"
)
_EVERY = ("0.0.0.0", "::", "*")
_LIKE = "write it like --rdzv node-a:29500, the same on every host"


def parse_meeting_point(text: str, where: str = "flag --rdzv") -> tuple[str, int]:
    """HOST:PORT, or [ADDRESS]:PORT with an IPv6 address."""
    found = _MEETING_POINT.fullmatch(text.strip())
    if found is None:
        six = text.strip().rpartition(":")
        do = (
            f"write an IPv6 address in brackets: --rdzv [{six[0]}]:{six[2]}"
            if ":" in six[0] and _plain(six[0])
            else _LIKE
        )
        raise UsageError(f"{text!r} is not HOST:PORT", where, do)
    port = int(found["port"] or found["six_port"])
    if not 1 <= port <= 65535:
        raise UsageError(f"port {port} does not exist (1 to 65535)", where, _LIKE)
    host = found["host"] or found["six"]
    if host in _EVERY:
        what = f"{text} names every address of a host, and so none that others can reach"
        raise UsageError(what, where, "name the address of the leading host, as the others reach it")
    return host, port


def resolve(host: str, where: str = "", within_s: float = _RESOLVE_S) -> list[str]:
    """Every address of this name, the system's favourite first."""
    found = ask_addresses(host, within_s)
    do = f"write its address in numbers, or add a line `ADDRESS {host}` to /etc/hosts on this host"
    if found is None:
        raise UsageError(f"no answer within {within_s:g} s to what the address of {host} is", where, do)
    if not found:
        raise UsageError(f"the name {host} does not resolve on {socket.gethostname()}", where, do)
    usable = [each for each in found if not is_of_one_link(each)]
    if not usable:
        what = f"{host} is {found[0]}, an address of one link, which means another place on every host"
        raise UsageError(what, where, "write an address that all hosts reach: ip address show on the leading host")
    return usable


def ask_addresses(host: str, within_s: float) -> list[str] | None:
    """The addresses of a name; empty where it has none, None where nobody answered in time."""
    found: list[str] = []

    def ask() -> None:
        # UnicodeError: a name with an empty or too long part, which the resolver does not even ask for.
        with contextlib.suppress(OSError, UnicodeError):
            found.extend(str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))

    # Of its own, because nothing else ends a question to a server that is not there.
    asking = threading.Thread(target=ask, name="resolve", daemon=True)
    asking.start()
    asking.join(within_s)
    return None if asking.is_alive() else list(dict.fromkeys(found))


def list_interfaces() -> dict[str, list[str]]:
    """Every interface with its IP addresses, those in four numbers first."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [
            each.address.partition("%")[0] for family in families for each in addresses if each.family == family
        ]  # an IPv6 address of one link carries its interface behind a %
        for name, addresses in sorted(psutil.net_if_addrs().items())
    }


def interface_of(address: str) -> str | None:
    """The interface that has this address; None where none of this host has it."""
    wanted = _plain(address)
    for name, addresses in list_interfaces().items():
        if any(_plain(each) == wanted for each in addresses):
            return name
    # The whole of 127.0.0.0/8 is the loopback's, whatever single address it shows.
    return interface_of("127.0.0.1") if is_loopback(address) and address != "127.0.0.1" else None


def address_of(interface: str, where: str = "launch.interface") -> str:
    """The address of an interface that is to be used."""
    check_interface(interface, where)
    addresses = list_interfaces()[interface]
    usable = [each for each in addresses if not is_of_one_link(each)]
    if not usable:
        has = (
            f"only {addresses[0]}, an address of one link, by which no other host knows it"
            if addresses
            else "no address"
        )
        what = f"the interface {interface} has {has} (there are: {describe_interfaces()})"
        raise UsageError(what, where, f"give it one, or choose another: ip address show {interface}")
    return usable[0]


def check_interface(name: str, where: str = "launch.interface") -> None:
    """UsageError where this host has no such interface, with those that it has."""
    here = list_interfaces()
    if name not in here:
        close = nearest(name, here)
        usable = close or next((each for each, found in here.items() if found and each != "lo"), "lo")
        what = f"there is no interface {name} on {socket.gethostname()} (there are: {describe_interfaces(here)})"
        raise UsageError(what, where, f"use {usable}" + (f", {' '.join(here[usable][:1])}" if here.get(usable) else ""))


def describe_interfaces(interfaces: Mapping[str, list[str]] | None = None) -> str:
    """eth0 10.0.0.7, lo 127.0.0.1"""
    found = list_interfaces() if interfaces is None else interfaces
    return ", ".join(f"{name} {addresses[0] if addresses else 'without address'}" for name, addresses in found.items())


def local_address_towards(host: str, port: int) -> str:
    """This host's address on the way to another one: what the kernel would take; nothing is sent. OSError where there is no way."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def is_of_one_link(address: str) -> bool:
    """fe80::…: without the interface, which has another name on every host, nothing can listen at it nor reach it."""
    plain = _plain(address)
    return isinstance(plain, ipaddress.IPv6Address) and plain.is_link_local


def own_address(host: str, where: str = "flag --rdzv") -> str | None:
    """The address by which `host` names this very host; None where it names another one.

    Many systems write their own name beside 127.0.1.1 into /etc/hosts: whoever listened there would wait for ever.
    """
    own = next((address for address in resolve(host, where) if interface_of(address) is not None), None)
    if own is not None and is_loopback(own) and not is_loopback(host):
        others = [each for found in list_interfaces().values() for each in found if not is_loopback(each)]
        others = [each for each in others if not is_of_one_link(each)]
        do = f"write its address in numbers instead: {others[0]}" if others else "give this host an address"
        raise UsageError(f"{host} is {own} here, which no other host can reach", where, do)
    return own


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
