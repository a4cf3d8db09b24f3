"""Are these hosts fit to train together? The same command on every one; the one that has the address of `--rdzv` leads.

check_hosts(subject, wait_s=60)     # names, ports, versions, the shared directory, every link between two of them
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from paceline.config.sections import Launch
from paceline.errors import UsageError
from paceline.launch.hosts.address import (
    address_of,
    describe_interfaces,
    local_address_towards,
    own_address,
    resolve,
)
from paceline.launch.hosts.endpoint import open_listener, parse_count, parse_endpoint
from paceline.launch.hosts.facts import collect_facts
from paceline.preflight.check import Check, from_problems
from paceline.preflight.hosts_guest import Meeting, attend
from paceline.preflight.hosts_host import preside
from paceline.preflight.storage import existing_place
from paceline.preflight.subject import Subject


def has_several(launch: Launch, origins: Mapping[str, str]) -> bool:
    """Whether more than this host may train."""
    return parse_count(launch.nnodes, origins["launch.nnodes"]).most > 1


def check_hosts(subject: Subject, wait_s: float) -> list[Check]:
    """What the hosts of launch.nnodes and launch.rdzv are together; UsageError where these cannot be used on this one."""
    launch, origins = subject.config.launch, subject.origins
    where = origins["launch.rdzv"]
    count, endpoint = parse_count(launch.nnodes, origins["launch.nnodes"]), parse_endpoint(launch.rdzv, where)
    interface = launch.interface if launch.interface != "auto" else None
    host, port = endpoint.host, endpoint.port
    asked = address_of(interface, origins["launch.interface"]) if interface is not None else None
    try:
        address = own_address(host, where)
        theirs = address or resolve(host, where)[0]
        mine = asked or address or _towards(theirs, port, where)
    except UsageError as error:
        return from_problems("names", error.problems)
    fingerprint = str(subject.identity["fingerprint"]) if subject.identity is not None else None
    meeting = Meeting(host, theirs, port, count.least, count.most, wait_s, fingerprint)
    facts = collect_facts(mine, subject.world_size)
    server = open_listener(endpoint, where)
    if server is None:
        return attend(meeting, facts)
    with server:
        return preside(meeting, facts, existing_place(subject.root), server)


def _towards(address: str, port: int, where: str) -> str:
    try:
        return local_address_towards(address, port)
    except OSError as error:
        what = f"there is no way from {socket.gethostname()} to {address} ({error.strerror or error})"
        do = f"bring up the network towards it: ip route get {address} (there are: {describe_interfaces()})"
        raise UsageError(what, where, do) from error
