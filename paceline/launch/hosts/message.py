"""What hosts say to each other, to train together or to be checked together: one JSON object per line over TCP, each with its kind.

encode(Beat())                      -> b'{"kind":"Beat"}\n'
decode(b'{"kind":"End","attempt":2,"why":"host b was lost"}')   -> End(attempt=2, why='host b was lost')

A member begins with a Hello (one that is only checked with a Visit), whose version and fields stand first, so that two versions of Paceline can still tell each other apart.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from paceline.telemetry.run_file import known_fields

VERSION = 1
LONGEST = 4 << 20
"""bytes of a line: a report holds the ends of tracebacks and of a log"""


@dataclass(frozen=True)
class Hello:
    """A host asks to take part."""

    host: str
    address: str
    interface: str
    nproc: int
    gpus: int
    fingerprint: str
    identity: dict[str, Any]
    """the values that make the run this run, by their dotted keys"""
    facts: dict[str, Any]
    """what the host is and has installed"""
    collectives: str
    """nccl or gloo: all ranks have to make them alike"""
    root: str
    """the run directory, as this host would call it"""
    v: int = VERSION


@dataclass(frozen=True)
class Welcome:
    """It may, if it finds in the run directory what the leader wrote there: only then do both see the same one."""

    index: int
    root: str
    proof: str
    """the digest of it"""


@dataclass(frozen=True)
class Refused:
    """It may not; what is wrong, as an error's record."""

    error: dict[str, Any]
    is_final: bool = True
    """False: later perhaps, such as when a place is free"""


@dataclass(frozen=True)
class Ready:
    """The member has found what the leader wrote, and waits for its part."""

    nonce: str


@dataclass(frozen=True)
class Notice:
    """A line for the member's terminal."""

    text: str


@dataclass(frozen=True)
class Begin:
    """One host's part of an attempt."""

    attempt: int
    run_id: str
    node_rank: int
    nnodes: int
    first_rank: int
    world_size: int
    master_addr: str
    master_port: int
    rendezvous_id: str
    nproc: int
    debug: bool = False

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.nproc)

    def describe(self) -> str:
        here = f"rank {self.first_rank}" if self.nproc == 1 else f"ranks {self.first_rank} to {self.ranks[-1]}"
        return f"{here} here, of {self.world_size} on {self.nnodes} hosts"


@dataclass(frozen=True)
class End:
    """The attempt is over: end every process of it, and report."""

    attempt: int
    why: str


@dataclass(frozen=True)
class Pulses:
    """Where a member's ranks are right now: their raw pulses, by rank, in base64."""

    attempt: int
    pulses: dict[str, Any]


@dataclass(frozen=True)
class Report:
    """How one host's part of an attempt ended; no process of it is left but those in `left`."""

    attempt: int
    agent_exit: int | None
    failures: list[dict[str, Any]] = field(default_factory=list)
    exits: list[list[int]] = field(default_factory=list)
    """[rank, exit code, pid] of ranks that torchrun saw fail"""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    left: str = ""
    """processes that could not be ended, in words"""


@dataclass(frozen=True)
class Leave:
    """The member's operator wants it out of the run."""

    why: str


@dataclass(frozen=True)
class Bye:
    """The run is over for whoever hears this."""

    state: str
    reason: str
    step: int | None
    exit_code: int
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Beat:
    """Still here."""


@dataclass(frozen=True)
class Visit:
    """A host comes to be checked together with others."""

    size: str
    """--nnodes, as it was told"""
    fingerprint: str | None
    facts: dict[str, Any]
    v: int = VERSION


@dataclass(frozen=True)
class Invited:
    """It may stay; whoever connects to measure a link between two of them shows the word."""

    word: str


@dataclass(frozen=True)
class Listening:
    """Where others may measure the link to this host."""

    port: int


@dataclass(frozen=True)
class Look:
    """Is this file there, with the word in it?"""

    path: str


@dataclass(frozen=True)
class Looked:
    """Why it is not; empty: it is."""

    reason: str


@dataclass(frozen=True)
class Measure:
    """Send to a host that listens there for so long."""

    address: str
    port: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """How fast that was, or why it was not possible."""

    bytes_per_s: float | None = None
    latency_s: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """What was found out about all of them: checks, as records."""

    checks: list[dict[str, Any]]


Training = Hello | Welcome | Ready | Notice | Begin | End | Pulses | Report | Leave | Bye
Checking = Visit | Invited | Listening | Look | Looked | Measure | Measured | Verdict
Message = Training | Checking | Refused | Beat
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


class WireError(Exception):
    """Bytes that are none of ours: another program, or a version that speaks otherwise."""


def encode(message: Message) -> bytes:
    record = {"kind": type(message).__name__} | asdict(message)
    return json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"


def decode(line: bytes) -> Message:
    """WireError for whatever is no message; fields that only a newer version knows are left out."""
    try:
        record = json.loads(line)
        kind = _KINDS[record["kind"]]
        message: Message = kind(**known_fields(kind, record))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"no message of Paceline: {line[:60]!r}") from error
    return message
