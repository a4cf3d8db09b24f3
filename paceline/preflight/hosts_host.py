"""The first host: waits for the others, lets each do its part, one at a time, and gives all of them the verdict.

    checks = preside(meeting, facts, place, server)     # the same on every host that came

A host that does not come, or goes, is told with those that came. Nothing waits longer than its limit.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from paceline.errors import RendezvousError
from paceline.launch.hosts.channel import Channel, Gone, Inbox, hear
from paceline.launch.hosts.endpoint import accept_next
from paceline.launch.hosts.facts import HostFacts, compare, label_hosts
from paceline.launch.hosts.message import (
    VERSION,
    Hello,
    Invited,
    Listening,
    Look,
    Looked,
    Measure,
    Measured,
    Message,
    Refused,
    Verdict,
    Visit,
)
from paceline.preflight.check import Check, fail, from_problems, ok, warn
from paceline.preflight.hosts_guest import STRANGE, GuestLost, Meeting, measure, read_speed
from paceline.preflight.hosts_links import CONNECT_S, LinkServer
from paceline.preflight.hosts_speeds import Link, find_slow, judge_links

_GREETING_S = 3.0
_ACCEPT_S = 0.2
_GOODBYE_S = 2.0
_LINK_S = 0.5
_ALL_LINKS_S = 120.0
"""of all measurements together: with very many hosts each is shorter"""
_SHORTEST_S = 0.1
_MARGIN_S = 15.0
_Answer = TypeVar("_Answer", Looked, Measured)


@dataclass
class _Guest:
    """A host that came: its connection, what it is, where it listens."""

    channel: Channel
    inbox: Inbox
    facts: HostFacts
    fingerprint: str | None
    port: int
    lost: str = ""
    """why nothing comes from it any more"""


def preside(meeting: Meeting, facts: HostFacts, place: Path, server: socket.socket) -> list[Check]:
    """Everything that can be said about these hosts together; `place` is where the token of the file system goes."""
    word = secrets.token_hex(16)
    guests: list[_Guest] = []
    server.settimeout(_ACCEPT_S)
    try:
        _gather(meeting, server, word, guests)
        checks = _examine(meeting, facts, place, word, guests)
        _say_goodbye(guests, Verdict([asdict(check) for check in checks]))
        return checks
    finally:
        for guest in guests:
            guest.channel.close()


def _gather(meeting: Meeting, server: socket.socket, word: str, guests: list[_Guest]) -> None:
    deadline = time.monotonic() + meeting.wait_s
    while len(guests) + 1 < meeting.most and time.monotonic() < deadline:
        connection = accept_next(server)
        newcomer = _greet(connection, meeting, word) if connection is not None else None
        if newcomer is not None:
            guests.append(newcomer)
        for guest in [each for each in guests if isinstance(hear(each.inbox, 0.0), Gone)]:
            guest.channel.close()
            guests.remove(guest)


def _greet(connection: socket.socket, meeting: Meeting, word: str) -> _Guest | None:
    """None where it is a stranger, or is sent away, which it is told."""
    inbox: Inbox = queue.SimpleQueue()
    channel = Channel(connection, inbox)
    visit = hear(inbox, _GREETING_S)
    refusal = _refuse(visit, meeting)
    if refusal is not None:
        channel.send(Refused(refusal.to_record()))
        hear(inbox, _GREETING_S)  # it closes when it has read that
    elif isinstance(visit, Visit):
        channel.send(Invited(word))
        listening = hear(inbox, _GREETING_S)
        if isinstance(listening, Listening):
            fingerprint = str(visit.fingerprint) if visit.fingerprint else None
            return _Guest(channel, inbox, HostFacts.from_record(visit.facts), fingerprint, listening.port)
    channel.close()
    return None


def _refuse(visit: Message | Gone | None, meeting: Meeting) -> RendezvousError | None:
    where = f"paceline preflight at {meeting.point}"
    if isinstance(visit, Hello):
        what = f"a preflight waits for hosts at {meeting.point}, and no training"
        return RendezvousError(what, where, "end the preflight, or wait until it has ended; then start again")
    if isinstance(visit, Visit) and visit.v != VERSION:
        what = f"it speaks version {visit.v} of the hosts' messages, this one {VERSION}"
        return RendezvousError(what, where, "install the same Paceline on every host")
    if isinstance(visit, Visit) and visit.size != meeting.size:
        what = f"--nnodes is {meeting.size} there and {visit.size} here"
        return RendezvousError(what, where, "type the same on every host")
    return None


def _say_goodbye(guests: list[_Guest], verdict: Verdict) -> None:
    """Whoever has read it closes the connection: what we close first may not arrive."""
    for guest in guests:
        guest.channel.send(verdict)
    deadline = time.monotonic() + _GOODBYE_S
    for guest in guests:
        while not guest.lost and hear(guest.inbox, deadline - time.monotonic()) is not None:
            guest.lost = "it has the verdict"


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
    return ok("interfaces", f"{said}: over these the ranks will talk")


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
            # All at once: one after another, those who see nothing would take the time of all of them together.
            for guest in guests:
                guest.channel.send(Look(str(path)))
            deadline = time.monotonic() + _MARGIN_S
            told = [_ask_seen(guest, deadline) for guest in guests]
    except OSError as error:
        return fail("shared directory", f"{place} cannot be written ({error.strerror})", do)
    blind = [f"{label} ({reason})" for label, reason in zip(labels[1:], told, strict=True) if reason != ""]
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

    def measure_pair(sender: int, receiver: int) -> Link:
        address, port = hosts[receiver].address, ports[receiver]
        if sender == 0:
            return Link(sender, receiver, *read_speed(measure(address, port, word, seconds)))
        guest = guests[sender - 1]
        guest.channel.send(Measure(address, port, seconds))
        try:
            answer = _hear(guest, seconds + CONNECT_S + _MARGIN_S, Measured)
        except GuestLost as lost:
            return Link(sender, receiver, None, str(lost))
        return Link(sender, receiver, *read_speed(answer))

    links = {pair: measure_pair(*pair) for pair in pairs}
    for seen in find_slow(list(links.values())):
        again = measure_pair(seen.sender, seen.receiver)
        assert seen.speed is not None
        if again.speed is not None and again.speed.bytes_per_s > seen.speed.bytes_per_s:
            links[seen.sender, seen.receiver] = again
    return list(links.values())


def _ask_seen(guest: _Guest, deadline: float) -> str:
    """Why a guest does not see what this host wrote; empty: it does."""
    try:
        return str(_hear(guest, _MARGIN_S, Looked, deadline).reason)
    except GuestLost as lost:
        return str(lost)


def _hear(guest: _Guest, limit_s: float, kind: type[_Answer], deadline: float | None = None) -> _Answer:
    """What a guest answers; GuestLost, now and whenever it is asked again, where it does not. `deadline`: it was asked before."""
    if not guest.lost:
        answer = hear(guest.inbox, limit_s if deadline is None else max(0.0, deadline - time.monotonic()))
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Gone) and not answer.is_foreign:
            guest.lost = f"{guest.facts.host} has left ({answer.why})"
        elif answer is None:
            guest.lost = f"{guest.facts.host} did not answer within {limit_s:g} s"
        else:
            guest.lost = f"{guest.facts.host} says something else: {STRANGE}"
    raise GuestLost(guest.lost)
