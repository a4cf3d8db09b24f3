"""The order of findings: the most likely cause first, what follows from it after."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.diagnose.finding import SEVERITIES, Finding

_FROM_CAUSE_TO_EFFECT = (
    "stopped",
    "out_of_memory",
    "disk_full",
    "dead_host",
    "not_finite",
    "desync",
    "message",
    "dead_rank",
    "stall",
    "gradient_exploding",
    "loss_spike",
    "gradient_zero",
    "loss_flat",
    "gate_collapse",
    "throttled",
    "slow_host",
    "straggler",
    "memory_growth",
    "slow",
    "throughput_decay",
    "data_bound",
    "communication_bound",
    "host_bound",
)
"""what can be the reason of what stands below it: a rank that was killed for its memory is dead, and the others stand still"""


def order_causes(findings: Iterable[Finding]) -> list[Finding]:
    """Each finding once, the most likely cause first."""
    unique: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.kind, finding.rank, finding.cause, finding.step if finding.kind == "not_finite" else None)
        unique.setdefault(key, finding)
    return sorted(unique.values(), key=_place)


def _place(finding: Finding) -> tuple[object, ...]:
    agreeing = sum(witness.agrees for witness in finding.witnesses)
    return (
        -SEVERITIES.index(finding.severity),
        _FROM_CAUSE_TO_EFFECT.index(finding.kind),
        finding.since if finding.since is not None else float("inf"),
        -agreeing,
        finding.rank if finding.rank is not None else -1,
    )
