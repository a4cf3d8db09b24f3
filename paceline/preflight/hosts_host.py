"""The first host: waits for the others, lets each do its part, one at a time, and gives all of them the verdict.

    checks = preside(meeting, facts, place, server)     # the same on every host that came

A host that does not come, or goes, is told with those that came. Nothing waits longer than its limit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import Problem
from paceline.launch.hosts.facts import HostFacts, compare, label_hosts
from paceline.preflight.check import Check, fail, from_problems, ok, warn
from paceline.preflight.hosts_guest import PROTOCOL, Meeting, read_speed, speed_record
from paceline.preflight.hosts_links import CONNECT_S, LinkServer
from paceline.preflight.hosts_speeds import Link, find_slow, judge_links
from paceline.preflight.hosts_wire import Wire, WireLost

_GREETING_S = 3.0
_BEAT_S = 1.0
_LINK_S = 0.5
_ALL_LINKS_S = 120.0
"""of all measurements together: with very many hosts each is shorter"""
_SHORTEST_S = 0.1
_MARGIN_S = 15.0


@dataclass
class _Guest:
    """A host that came: its connection, what it is, where it listens."""

    wire: Wire
    facts: HostFacts
    fingerprint: str | None
    port: int
    lost: str = ""
    """why nothing comes from it any more"""


def preside(meeting: Meeting, facts: HostFacts, place: Path, server: socket.socket) -> list[Check]:
    """Everything that can be said about these hosts together; `place` is where the token of the file system goes."""
    word = secrets.token_hex(16)
    guests: list[_Guest] = []
    try:
        _gather(meeting, facts, server, word, guests)
        checks = _examine(meeting, facts, place, word, guests)
        _tell(guests, "verdict", checks=[asdict(check) for check in checks])
        return checks
    finally:
        for guest in guests:
            guest.wire.close()


def _gather(meeting: Meeting, facts: HostFacts, server: socket.socket, word: str, guests: list[_Guest]) -> None:
    deadline = time.monotonic() + meeting.wait_s
    beat = time.monotonic()
    while len(guests) + 1 < meeting.most and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            connection, _ = server.accept()
            guest = _greet(Wire(connection), meeting, word)
            if guest is not None:
                guests.append(guest)
        if time.monotonic() - beat >= _BEAT_S:
            beat = time.monotonic()
            _tell(guests, "wait")
            for guest in [each for each in guests if each.lost or each.wire.is_gone()]:
                guest.wire.close()
                guests.remove(guest)


def _greet(wire: Wire, meeting: Meeting, word: str) -> _Guest | None:
    """None where it is a stranger, or is sent away, which it is told."""
    try:
        hello = wire.receive(_GREETING_S)
        if hello["kind"] != "hello" or not isinstance(hello.get("facts"), dict):
            raise WireLost("a stranger")
        refusal = _refuse(hello, meeting)
        if refusal is not None:
            wire.send("refused", what=refusal.what, do=refusal.do)
            raise WireLost(refusal.what)
        wire.send("welcome", word=word)
        port = int(wire.receive(_GREETING_S)["port"])
    except (WireLost, KeyError, TypeError, ValueError):
        wire.close()
        return None
    fingerprint = hello.get("fingerprint")
    return _Guest(wire, HostFacts.from_record(hello["facts"]), str(fingerprint) if fingerprint else None, port)


def _refuse(hello: dict[str, Any], meeting: Meeting) -> Problem | None:
    if hello.get("v") != PROTOCOL:
        other = hello["facts"].get("paceline", "?")
        what = f"its preflight speaks version {hello.get('v')}, this one {PROTOCOL} (it has paceline {other})"
        return Problem(what, "", "install the same paceline on every host")
    if hello.get("size") != meeting.size:
        do = "type the same on every host"
        return Problem(f"--nnodes is {meeting.size} there and {hello.get('size')} here", "", do)
    return None


def _examine(meeting: Meeting, facts: HostFacts, place: Path, word: str, guests: list[_Guest]) -> list[Check]:
    hosts = [facts, *(guest.facts for guest in guests)]
    labels = label_hosts(hosts)
    checks = [_attendance(meeting, hosts, labels)]
    if len(hosts) < 2:
        return checks
    checks.append(_addresses(hosts, labels))
    checks += from_problems("versions", compare(hosts)) or [_same_versions(facts, len(hosts))]
    checks += _same_configuration(meeting, guests, labels)
    checks.append(_shared_place(place, word, guests, labels))
    with LinkServer(facts.address, word) as server:
        ports = [server.port, *(guest.port for guest in guests)]
        checks += judge_links(_measure_all(hosts, ports, guests, word), labels)
    return checks


def _attendance(meeting: Meeting, hosts: list[HostFacts], labels: list[str]) -> Check:
    came = ", ".join(f"{label} ({facts.nproc} rank{'' if facts.nproc == 1 else 's'})" for label, facts in zip(labels, hosts, strict=True))  # fmt: skip
    values = {"hosts": [facts.to_record() for facts in hosts], "nnodes": meeting.size}
    if len(hosts) == meeting.most:
        return ok("hosts", f"{len(hosts)}: {came}", **values)
    missing = meeting.most - len(hosts)
    what = f"{missing} of {meeting.most} did not come to {meeting.point} within {meeting.wait_s:g} s; here: {came}"
    do = f"start the same command on {'it' if missing == 1 else 'them'}; one that runs and cannot come says why itself"
    return fail("hosts", what, do, **values) if len(hosts) < meeting.least else warn("hosts", what, do, **values)


def _addresses(hosts: list[HostFacts], labels: list[str]) -> Check:
    """Which interface the traffic takes: the wrong one of two is slow, and nobody sees it."""
    said = ", ".join(
        f"{label} {facts.address} on {facts.interface}" for label, facts in zip(labels, hosts, strict=True)
    )
    return ok("interfaces", f"{said}: the way to the first host")


def _same_versions(facts: HostFacts, count: int) -> Check:
    nccl = f", NCCL {facts.nccl}" if facts.nccl != "none" else ""
    about = f"the same on {count} hosts: paceline {facts.paceline} ({facts.digest}), torch {facts.torch}{nccl}, Python {facts.python}"
    return ok("versions", about)


def _same_configuration(meeting: Meeting, guests: list[_Guest], labels: list[str]) -> list[Check]:
    """The fingerprint has the data in it."""
    odd = [label for guest, label in zip(guests, labels[1:], strict=True) if guest.fingerprint != meeting.fingerprint]
    if odd:
        what = f"{', '.join(odd)}: another configuration, or other data, than on {labels[0]}"
        return [fail("same job", what, "type the same on every host; paceline explain shows the fingerprint")]
    return [ok("same job", f"{meeting.fingerprint[:16]} on every host")] if meeting.fingerprint else []


def _shared_place(place: Path, word: str, guests: list[_Guest], labels: list[str]) -> Check:
    """Whether every host sees a file that this one writes where the run directory will be."""
    do = "--out DIR on a file system that all hosts have at the same path (NFS, Lustre)"
    try:
        with _token(place, word) as path:
            seen = [_ask(guest, _MARGIN_S, "look", path=str(path)).get("reason") for guest in guests]
    except OSError as error:
        return fail("shared directory", f"{place} cannot be written ({error.strerror})", do)
    blind = [f"{label} ({reason})" for label, reason in zip(labels[1:], seen, strict=True) if reason]
    if blind:
        what = f"{place} of {labels[0]} is not the same on {', '.join(blind)}: checkpoints must be seen by every host"
        return fail("shared directory", what, do)
    return ok("shared directory", f"every host sees what {labels[0]} writes to {place}")


@contextlib.contextmanager
def _token(place: Path, word: str) -> Iterator[Path]:
    path = place / f".paceline-preflight-{word[:16]}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, word.encode())
        os.fsync(descriptor)
        yield path
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _measure_all(hosts: list[HostFacts], ports: list[int], guests: list[_Guest], word: str) -> list[Link]:
    """Every direction, one at a time; what seems slow once more, and the better figure counts."""
    pairs = [(a, b) for a in range(len(hosts)) for b in range(len(hosts)) if a != b]
    seconds = max(_SHORTEST_S, min(_LINK_S, _ALL_LINKS_S / len(pairs)))

    def measure(sender: int, receiver: int) -> Link:
        for other in guests:  # whoever has nothing to do hears that we are there
            if sender == 0 or other is not guests[sender - 1]:
                _tell([other], "wait")
        where = {"address": hosts[receiver].address, "port": ports[receiver], "seconds": seconds}
        if sender == 0:
            record = speed_record(hosts[receiver].address, ports[receiver], word, seconds)
        else:
            record = _ask(guests[sender - 1], seconds + CONNECT_S + _MARGIN_S, "measure", **where)
        return Link(sender, receiver, *read_speed(record))

    links = {pair: measure(*pair) for pair in pairs}
    for seen in find_slow(list(links.values())):
        again = measure(seen.sender, seen.receiver)
        assert seen.speed is not None
        if again.speed is not None and again.speed.bytes_per_s > seen.speed.bytes_per_s:
            links[seen.sender, seen.receiver] = again
    return list(links.values())


def _ask(guest: _Guest, within_s: float, kind: str, /, **values: Any) -> dict[str, Any]:
    """What a guest answers; where it is gone, the reason."""
    if not guest.lost:
        try:
            guest.wire.send(kind, **values)
            return guest.wire.receive(within_s)
        except WireLost as lost:
            guest.lost = f"{guest.facts.host} has left ({lost})"
    return {"reason": guest.lost}


def _tell(guests: list[_Guest], kind: str, /, **values: Any) -> None:
    for guest in guests:
        try:
            guest.wire.send(kind, **values)
        except WireLost as lost:
            guest.lost = guest.lost or f"{guest.facts.host} has left ({lost})"
