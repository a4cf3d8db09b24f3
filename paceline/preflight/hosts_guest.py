"""A host that comes to the first one: says what it is, does what it is told, and gets the verdict on all of them.

    checks = attend(meeting, facts)      # what the first host found, or why it could not be reached

The first host speaks at least every second, so that silence means that it is gone.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from paceline.launch.hosts.facts import HostFacts
from paceline.preflight.check import Check, Status, fail
from paceline.preflight.hosts_links import CONNECT_S, LONGEST_S, LinkServer, Speed, measure_link
from paceline.preflight.hosts_wire import STRANGE, Wire, WireLost, connect, read_number

PROTOCOL = 1
SILENCE_S = 30.0
_TRY_AGAIN_S = 0.3
_SHARED_S = 5.0
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
NAME = "rendezvous"


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
            connection = connect(meeting.address, meeting.port, within_s)
            break
        except OSError as error:
            # A last try that our own limit cut short says less than what was met before.
            met = error if met is None or not isinstance(error, TimeoutError) or within_s == CONNECT_S else met
            if time.monotonic() + _TRY_AGAIN_S >= deadline:
                return [explain_silence(meeting, facts, met)]
            time.sleep(_TRY_AGAIN_S)
    with contextlib.closing(Wire(connection)) as wire:
        try:
            return _take_part(wire, meeting, facts)
        except WireLost as lost:
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


def _take_part(wire: Wire, meeting: Meeting, facts: HostFacts) -> list[Check]:
    wire.send("hello", v=PROTOCOL, size=meeting.size, fingerprint=meeting.fingerprint, facts=facts.to_record())
    answer = wire.receive(SILENCE_S)
    if answer["kind"] != "welcome":
        return [_refusal(answer, meeting)]
    word = str(answer.get("word"))
    with LinkServer(facts.address, word) as server:
        wire.send("listening", port=server.port)
        while True:
            told = wire.receive(SILENCE_S)
            if told["kind"] == "look":
                wire.send("looked", reason=look_for(Path(str(told.get("path"))), word))
            elif told["kind"] == "measure":
                wire.send("measured", **_measure(told, word))
            elif told["kind"] == "verdict":
                return _read_verdict(told)


def _read_verdict(told: dict[str, Any]) -> list[Check]:
    try:
        checks = [Check(**check) for check in told["checks"]]
    except (KeyError, TypeError):
        raise WireLost(STRANGE) from None
    if any(check.status not in get_args(Status) for check in checks):
        raise WireLost(STRANGE)
    return checks


def _refusal(answer: dict[str, Any], meeting: Meeting) -> Check:
    what = str(answer.get("what", "it gave no reason"))
    return fail(NAME, f"{meeting.point} refuses {socket.gethostname()}: {what}", str(answer.get("do", "")))


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


def _measure(told: dict[str, Any], word: str) -> dict[str, Any]:
    seconds = min(read_number(told, "seconds"), LONGEST_S)
    return speed_record(str(told.get("address")), int(read_number(told, "port")), word, seconds)


def speed_record(address: str, port: int, word: str, seconds: float) -> dict[str, Any]:
    """What a measurement from here came to, for the wire."""
    try:
        speed = measure_link(address, port, word, seconds)
    except (OSError, WireLost, OverflowError, UnicodeError) as error:  # the last two: no port, no name at all
        reason = "no answer" if isinstance(error, TimeoutError) else (getattr(error, "strerror", None) or str(error))
        return {"reason": f"{reason} ({address} port {port})"}
    return {"bytes_per_s": speed.bytes_per_s, "latency_s": speed.latency_s}


def read_speed(record: dict[str, Any]) -> tuple[Speed | None, str]:
    """(speed, "") or (None, reason)."""
    if "bytes_per_s" not in record:
        return None, str(record.get("reason", "no figure came"))
    try:
        return Speed(read_number(record, "bytes_per_s"), read_number(record, "latency_s")), ""
    except WireLost as lost:
        return None, str(lost)
