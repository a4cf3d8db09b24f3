"""Are these hosts fit to train together? The same command on every one; the one that has the address of `--rdzv` leads.

check_hosts(subject, nnodes="2", rdzv="node-a:29500")     # names, ports, versions, the shared directory, every link between two of them
"""

from __future__ import annotations

import errno
import re
import socket

from paceline.errors import UsageError
from paceline.launch.hosts.address import (
    address_of,
    describe_interfaces,
    interface_of,
    local_address_towards,
    own_address,
    parse_meeting_point,
    resolve,
)
from paceline.launch.hosts.facts import collect_facts
from paceline.preflight.check import Check, from_problems
from paceline.preflight.hosts_guest import Meeting, attend
from paceline.preflight.hosts_host import preside
from paceline.preflight.hosts_wire import listen
from paceline.preflight.storage import existing_place
from paceline.preflight.subject import Subject

WAIT_S = 60.0
_MOST = 1000


def parse_nnodes(text: str, where: str = "flag --nnodes") -> tuple[int, int]:
    """N, or MIN:MAX."""
    found = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= _MOST:
        raise UsageError(f"{text!r} is not a number of hosts", where, "write it like --nnodes 2, or --nnodes 1:2")
    return least, most


def check_hosts(
    subject: Subject, nnodes: str, rdzv: str, interface: str | None = None, wait_s: float = WAIT_S
) -> list[Check]:
    """What the hosts are together; UsageError where the flags cannot be used on this one."""
    least, most = parse_nnodes(nnodes)
    host, port = parse_meeting_point(rdzv)
    asked = address_of(interface, "flag --interface") if interface is not None else None
    try:
        address = own_address(host)
        theirs = address or resolve(host, "flag --rdzv")[0]
        mine = asked or address or _towards(theirs, port)
    except UsageError as error:
        return from_problems("names", error.problems)
    if address is not None and asked is not None and interface_of(address) != interface:
        what = f"{host} is {address} on {interface_of(address)}, and --interface {interface} has {asked}"
        raise UsageError(
            what, "flag --interface", f"--rdzv {asked}:{port} on every host, or leave --interface out here"
        )
    fingerprint = str(subject.identity["fingerprint"]) if subject.identity is not None else None
    meeting = Meeting(host, theirs, port, least, most, wait_s, fingerprint)
    facts = collect_facts(mine, subject.world_size)
    server = _try_to_listen(address, port) if address is not None else None
    if server is None:
        return attend(meeting, facts)
    with server:
        return preside(meeting, facts, existing_place(subject.root), server)


def _towards(address: str, port: int) -> str:
    try:
        return local_address_towards(address, port)
    except OSError as error:
        what = f"there is no way from {socket.gethostname()} to {address} ({error.strerror or error})"
        do = f"bring up the network towards it: ip route get {address} (there are: {describe_interfaces()})"
        raise UsageError(what, "flag --rdzv", do) from error


def _try_to_listen(address: str, port: int) -> socket.socket | None:
    """None where somebody of this host listens there already: it leads, we come to it."""
    try:
        return listen(address, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        what = f"cannot listen at {address} port {port} ({error.strerror or error})"
        do = "use a port from 1024 up, such as 29500" if error.errno == errno.EACCES else "choose another --rdzv"
        raise UsageError(what, "flag --rdzv", do) from error
