"""What is known of one trial that has ended: the record of the ledger, and what the race is told of it.

    from_record(row.record).for_objective("ndcg_10").result("bucket_mb=25", round=1)   -> TrialResult(…)

A record holds everything that was seen, whatever was asked for: another objective reads another number of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paceline.sweep.evidence import TrialResult
from paceline.sweep.plan import STEP_TIME, THROUGHPUT

_NOT_REPORTED = "no evaluation reported "


@dataclass(frozen=True)
class Measured:
    """What the run directory of one trial says; the record of the ledger."""

    status: str
    reason: str = ""
    exit_code: int | None = None
    last_step: int | None = None
    duration_s: float = 0.0
    device_s: float = 0.0
    devices: int = 1
    startup_s: float = 0.0
    counted_steps: int = 0
    samples_per_s: float | None = None
    units_per_s: float | None = None
    """in the recipe's unit; None: it tells none, and samples are what counts"""
    unit: str | None = None
    """what that unit is called"""
    step_ms_p50: float | None = None
    step_ms_p90: float | None = None
    data_ms: float | None = None
    memory_gib: float | None = None
    rank_spread_ms: float | None = None
    final_loss: float | None = None
    samples: int | None = None
    metric: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """of the last evaluation of the deciding split"""
    windows: tuple[float, ...] = ()
    """the pace in each, as `pace` counts it"""
    window_step_ms: tuple[float, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    world_size: int | None = None
    ranks: dict[str, Any] | None = None
    """what its ranks did, and the verdict on them; None: not known of a script, or by the version that ran it"""
    choices: dict[str, dict[str, Any]] = field(default_factory=dict)
    """key -> {"requested", "effective", "reason"} of what was chosen for it"""
    tail: tuple[str, ...] = ()
    """the last lines of a trial that failed"""

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def pace(self) -> float | None:
        """What is compared: in the recipe's unit per second, in samples where it has none."""
        return self.units_per_s if self.units_per_s is not None else self.samples_per_s

    def for_objective(self, objective: str) -> Measured:
        """The same trial, judged by this objective; the one it was run for may have been another."""
        metric = None if objective == THROUGHPUT else self.step_ms_p50
        status, reason = self.status, self.reason
        if status == "failed" and reason.startswith(_NOT_REPORTED):
            status, reason = "ok", ""
        if objective not in (THROUGHPUT, STEP_TIME):
            metric = self.metrics.get(objective)
            if status == "ok" and metric is None:
                status, reason = "failed", f"{_NOT_REPORTED}{objective}"
        return replace(self, status=status, reason=reason, metric=metric)

    def result(self, case: str, round: int, began: float | None = None) -> TrialResult:
        """As the race wants it; `began`: when its process was started, if that is known."""
        return TrialResult(
            case=case,
            round=round,
            status=self.status,
            samples_per_s=self.pace,
            step_ms_p50=self.step_ms_p50,
            step_ms_p90=self.step_ms_p90,
            memory_gib=self.memory_gib,
            data_ms=self.data_ms,
            rank_spread_ms=self.rank_spread_ms,
            losses=self.losses,
            windows=self.windows,
            device_s=self.device_s,
            devices=self.devices,
            startup_s=self.startup_s,
            metric=self.metric,
            steps=self.counted_steps,
            time_s=None if began is None else began + (self.startup_s + self.duration_s) / 2,
            samples=self.samples or 0,
        )


def from_record(record: Mapping[str, Any]) -> Measured:
    """What `to_record` wrote, by this version or an older one."""
    known = {name: record[name] for name in Measured.__dataclass_fields__ if name in record}
    for name in ("windows", "window_step_ms", "tail"):
        known[name] = tuple(known.get(name, ()))
    known["losses"] = tuple((int(samples), float(loss)) for samples, loss in known.get("losses", ()))
    return Measured(**known)
