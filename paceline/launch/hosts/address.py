"""Which of this host's addresses and interfaces lead to another host.

local_address_towards("10.9.0.1", 29500)   -> "10.9.0.2"
interface_of("10.9.0.2")                   -> "eth0"
"""

from __future__ import annotations

import socket

import psutil


def local_address_towards(host: str, port: int) -> str:
    """The address that this host would use; nothing is sent. OSError where there is no way."""
    for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    raise OSError(f"no address of {host}")


def interface_of(address: str) -> str | None:
    """The network interface that has this address; None: none of this host."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    return None
