"""A finding: what is wrong with a run, which rank did it, since when, who says so, and what to do.

Finding("stopped", "rank 2 is stopped (state T) in backward of step 120", "kill -CONT 4711, or paceline stop runs/a",
        rank=2, host="a", phase="backward", step=120, since=…, witnesses=(Witness("process", True, "state T"),))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

KINDS = (
    "stall",
    "slow",
    "stopped",
    "dead_rank",
    "dead_host",
    "out_of_memory",
    "disk_full",
    "straggler",
    "slow_host",
    "throttled",
    "data_bound",
    "communication_bound",
    "host_bound",
    "not_finite",
    "loss_spike",
    "gradient_exploding",
    "gradient_zero",
    "loss_flat",
    "throughput_decay",
    "memory_growth",
    "desync",
    "gate_collapse",
    "message",
)
"""What can be found; the words of reports, of `supervise` and of the fault matrix. `message`: a text that people meet is known."""

SEVERITIES = ("note", "warning", "critical")
"""critical: the run makes no progress, or what it makes is worthless; a policy acts on these alone"""


@dataclass(frozen=True)
class Witness:
    """One source of evidence, and what it says."""

    name: str
    """pulse, process, wait, stacks, log, events, metrics, heartbeat, kernel, gpu, output"""
    agrees: bool
    said: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    what: str
    """one sentence for a person, with names and numbers"""
    do: str
    """what to type or change next"""
    severity: str = "warning"
    cause: str = ""
    """finer than the kind, in a word: `data`, `forward`, `backward`, `collective`, `checkpoint`, `sigkill`, `oom_kill`, `sigstop` …"""
    rank: int | None = None
    """who did it; None: nobody is known, or all"""
    ranks: tuple[int, ...] = ()
    """all that did it, where it is not one"""
    host: str | None = None
    phase: str | None = None
    step: int | None = None
    since: float | None = None
    """unix time, by the clock of the host that it happened on"""
    witnesses: tuple[Witness, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind
        assert self.severity in SEVERITIES, self.severity

    @property
    def subject(self) -> tuple[str, int | None]:
        """What makes it the same finding when it is found again."""
        return self.kind, self.rank

    def to_record(self) -> dict[str, Any]:
        return asdict(self) | {"numbers": dict(self.numbers)}


def finding_from_record(record: Any) -> Finding | None:
    """What `to_record` wrote, as JSON gives it back; None where it is none, or of a kind that this version does not know."""
    if not isinstance(record, dict) or record.get("kind") not in KINDS or record.get("severity") not in SEVERITIES:
        return None
    known = {entry.name: record[entry.name] for entry in fields(Finding) if entry.name in record}
    try:
        witnesses = tuple(Witness(each["name"], bool(each["agrees"]), each["said"]) for each in known["witnesses"])
        return Finding(**known | {"ranks": tuple(known["ranks"]), "witnesses": witnesses})
    except (KeyError, TypeError):
        return None
