"""A host that comes to the first one: says what it is, does what it is told, and gets the verdict on all of them.

    checks = attend(meeting, facts)      # what the first host found, or why it could not be reached

Both sides beat every second, so that silence means that the other one is gone.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from paceline.errors import error_from_record
from paceline.launch.hosts.channel import Channel, Gone, Inbox, hear
from paceline.launch.hosts.facts import HostFacts
from paceline.launch.hosts.message import (
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
from paceline.preflight.check import Check, Status, fail
from paceline.preflight.hosts_links import CONNECT_S, LONGEST_S, LinkLost, LinkServer, Speed, measure_link
from paceline.telemetry.numbers import is_finite

SILENCE_S = 30.0
_LOOK_S = 0.5
_TRY_AGAIN_S = 0.3
_SHARED_S = 5.0
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
NAME = "rendezvous"
STRANGE = "what came is not of a paceline preflight"


class GuestLost(Exception):
    """Nothing more comes from the other side; says why."""


@dataclass(frozen=True)
class Meeting:
    """Where and with how many; the same on every host."""

    host: str
    address: str
    """what `host` resolves to here"""
    port: int
    least: int
    most: int
    wait_s: float
    fingerprint: str | None = None
    """of the configuration, where there is one"""

    @property
    def point(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def size(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


def attend(meeting: Meeting, facts: HostFacts) -> list[Check]:
    """The checks that the first host sent, or a single one that says why there are none."""
    deadline = time.monotonic() + meeting.wait_s
    met: OSError | None = None
    while True:
        try:
            within_s = max(0.1, min(CONNECT_S, deadline - time.monotonic()))
            connection = socket.create_connection((meeting.address, meeting.port), timeout=within_s)
            break
        except OSError as error:
            # A last try that our own limit cut short says less than what was met before.
            met = error if met is None or not isinstance(error, TimeoutError) or within_s == CONNECT_S else met
            if time.monotonic() + _TRY_AGAIN_S >= deadline:
                return [explain_silence(meeting, facts, met)]
            time.sleep(_TRY_AGAIN_S)
    inbox: Inbox = queue.SimpleQueue()
    with contextlib.closing(Channel(connection, inbox)) as channel:
        try:
            return _take_part(channel, inbox, meeting, facts)
        except GuestLost as lost:
            what = f"the first host, {meeting.point}, left before it had a verdict: {lost}"
            do = f"see what {meeting.host} says, then start the same command on every host again; where it runs no preflight, "
            do += f"another program has port {meeting.port}: choose another --rdzv; where it has a verdict, it had its hosts already"
            return [fail(NAME, what, do)]


def explain_silence(meeting: Meeting, facts: HostFacts, error: OSError) -> Check:
    """Why nobody answers there, and on which side to mend it."""
    point = meeting.host if meeting.host == meeting.address else f"{meeting.host} ({meeting.address})"
    waited = f"after {meeting.wait_s:g} s of trying"
    if isinstance(error, ConnectionRefusedError):
        what = (
            f"{point} is there, but refuses port {meeting.port} {waited}: nothing listens, or its firewall rejects it"
        )
        do = f"start the same command on {meeting.host}; if it runs there, open TCP port {meeting.port} on {meeting.host}"
        return fail(NAME, what, do)
    if error.errno in _UNREACHABLE:
        what = f"{facts.host} ({facts.address}) has no way to {point} {waited}: {error.strerror}"
        return fail(NAME, what, f"is {meeting.host} up, and in a network of this host? ip route get {meeting.address}")
    if isinstance(error, TimeoutError):
        what = f"no answer from {point} at port {meeting.port} {waited}: a firewall drops what comes in, or answers find no way back"
        do = f"open TCP port {meeting.port} on {meeting.host} to {facts.address}; there: ip route get {facts.address}"
        return fail(NAME, what, do)
    what = f"no connection from {facts.address} to {point} at port {meeting.port} {waited}: {error.strerror or error}"
    return fail(NAME, what, f"look at the network between {facts.host} and {meeting.host}")


def _take_part(channel: Channel, inbox: Inbox, meeting: Meeting, facts: HostFacts) -> list[Check]:
    channel.send(Visit(meeting.size, meeting.fingerprint, facts.to_record()))
    answer = _receive(channel, inbox)
    if isinstance(answer, Refused):
        return [_refusal(answer, meeting)]
    if not isinstance(answer, Invited):
        raise GuestLost(STRANGE)
    word = str(answer.word)
    with LinkServer(facts.address, word) as server:
        channel.send(Listening(server.port))
        while True:
            told = _receive(channel, inbox)
            if isinstance(told, Look):
                channel.send(Looked(look_for(Path(str(told.path)), word)))
            elif isinstance(told, Measure):
                channel.send(_measure(told, word))
            elif isinstance(told, Verdict):
                return _read_verdict(told)


def _receive(channel: Channel, inbox: Inbox) -> Message:
    """GuestLost where the first host has gone, or is none."""
    while True:
        message = hear(inbox, _LOOK_S)
        if isinstance(message, Gone):
            raise GuestLost(STRANGE if message.is_foreign else message.why)
        if message is not None:
            return message
        if channel.silent_s > SILENCE_S:
            raise GuestLost(f"silent for {SILENCE_S:g} s")


def _read_verdict(told: Verdict) -> list[Check]:
    try:
        checks = [Check(**check) for check in told.checks]
    except TypeError:
        raise GuestLost(STRANGE) from None
    if any(check.status not in get_args(Status) for check in checks):
        raise GuestLost(STRANGE)
    return checks


def _refusal(answer: Refused, meeting: Meeting) -> Check:
    problem = error_from_record(answer.error).problems[0]
    return fail(NAME, f"{meeting.point} refuses {socket.gethostname()}: {problem.what}", problem.do)


def look_for(path: Path, word: str) -> str:
    """Why this host does not see what the first one wrote; empty where it does. A network file system may take a moment."""
    deadline = time.monotonic() + _SHARED_S
    while True:
        try:
            return "" if path.read_text() == word else "another content"
        except OSError as error:
            if time.monotonic() > deadline:
                return error.strerror or str(error)
            time.sleep(0.1)


def _measure(told: Measure, word: str) -> Measured:
    if not is_finite(told.seconds) or not isinstance(told.port, int):
        raise GuestLost(STRANGE)
    return measure(str(told.address), told.port, word, min(told.seconds, LONGEST_S))


def measure(address: str, port: int, word: str, seconds: float) -> Measured:
    """What a measurement from here came to."""
    try:
        speed = measure_link(address, port, word, seconds)
    except (OSError, LinkLost, OverflowError, UnicodeError) as error:  # the last two: no port, no name at all
        reason = "no answer" if isinstance(error, TimeoutError) else (getattr(error, "strerror", None) or str(error))
        return Measured(reason=f"{reason} ({address} port {port})")
    return Measured(speed.bytes_per_s, speed.latency_s)


def read_speed(measured: Measured) -> tuple[Speed | None, str]:
    """(speed, "") or (None, reason); the other side may be anybody."""
    if measured.bytes_per_s is None:
        return None, str(measured.reason or "no figure came")
    if not is_finite(measured.bytes_per_s) or not is_finite(measured.latency_s):
        return None, STRANGE
    return Speed(float(measured.bytes_per_s), float(measured.latency_s)), ""
