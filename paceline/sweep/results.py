"""What a trial came to, from its run directory: throughput over true wall time after the warm-up, in windows that do not overlap.

    read_trial(root, TrialSpan(warmup_steps=20, steps=280, window=50), …)   -> Measured(samples_per_s=1030.2, windows=(1021.0, …), …)

A trial that failed has numbers as far as it got.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.sweep.evidence import TrialResult
from paceline.sweep.plan import STEP_TIME, THROUGHPUT
from paceline.telemetry.reader import Row, Run, read_run

_MOST_LOSSES = 300
_STATUS_OF_ERROR = {"OutOfMemoryError": "oom", "NonFiniteError": "diverged"}


@dataclass(frozen=True)
class TrialSpan:
    """How a trial is looked at."""

    warmup_steps: int
    steps: int
    """counted ones"""
    window: int
    objective: str = THROUGHPUT

    @property
    def total(self) -> int:
        return self.warmup_steps + self.steps


@dataclass(frozen=True)
class Measured:
    """What the run directory of one trial says; the record of the ledger."""

    status: str
    reason: str = ""
    exit_code: int | None = None
    last_step: int | None = None
    duration_s: float = 0.0
    device_s: float = 0.0
    startup_s: float = 0.0
    counted_steps: int = 0
    samples_per_s: float | None = None
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
    window_step_ms: tuple[float, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    world_size: int | None = None
    choices: dict[str, dict[str, Any]] = field(default_factory=dict)
    """key -> {"requested", "effective", "reason"} of what was chosen for it"""
    tail: tuple[str, ...] = ()
    """the last lines of a trial that failed"""

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    def result(self, case: str, round: int) -> TrialResult:
        """As the race wants it."""
        return TrialResult(
            case=case,
            round=round,
            status=self.status,
            samples_per_s=self.samples_per_s,
            step_ms_p50=self.step_ms_p50,
            step_ms_p90=self.step_ms_p90,
            memory_gib=self.memory_gib,
            data_ms=self.data_ms,
            rank_spread_ms=self.rank_spread_ms,
            losses=self.losses,
            windows=self.windows,
            device_s=self.device_s,
            startup_s=self.startup_s,
            metric=self.metric,
            steps=self.counted_steps,
        )


def from_record(record: Mapping[str, Any]) -> Measured:
    """What `to_record` wrote, by this version or an older one."""
    known = {name: record[name] for name in Measured.__dataclass_fields__ if name in record}
    for name in ("windows", "window_step_ms", "tail"):
        known[name] = tuple(known.get(name, ()))
    known["losses"] = tuple((int(samples), float(loss)) for samples, loss in known.get("losses", ()))
    return Measured(**known)


def read_trial(
    root: Path,
    span: TrialSpan,
    *,
    num_devices: int,
    began: float,
    ended: float,
    verdict: str | None = None,
    reason: str = "",
    exit_code: int | None = None,
) -> Measured:
    """What came of the trial in `root`; `verdict` (timeout, stopped) and `reason` are what whoever ended it knows better."""
    duration_s = ended - began
    common: dict[str, Any] = {
        "duration_s": duration_s,
        "device_s": duration_s * num_devices,
        "startup_s": duration_s,
        "exit_code": exit_code,
    }
    try:
        run = read_run(root)
    except PacelineError:
        why = reason or "it ended before it had a run directory"
        return Measured(verdict or "failed", why, **common)
    rows = [row for row in run.metrics if isinstance(row.get("time"), int | float)]
    counted = _counted(rows, span, began)
    status, why = _status(run, rows, counted, span)
    if verdict is not None:
        status, why = verdict, reason or why
    last = run.run.attempts[-1].step if run.run.attempts else None
    last = max((step for step in (last, rows[-1]["step"] if rows else None) if step is not None), default=None)
    losses = _losses(rows)
    evaluated = _last_evaluation(run)
    measured: dict[str, Any] = {
        "last_step": last,
        "final_loss": _number(rows[-1].get("loss")) if rows else None,
        "samples": rows[-1].get("samples") if rows else None,
        "losses": losses,
        "metrics": evaluated,
        "world_size": run.run.attempts[-1].world_size if run.run.attempts else None,
        "choices": _choices(run),
        "rank_spread_ms": _rank_spread(run, span.warmup_steps),
        "memory_gib": max((row["memory_gib"] for row in rows if _is_number(row.get("memory_gib"))), default=None),
    }
    if counted is not None:
        measured |= _pace(counted, span)
        common["startup_s"] = max(0.0, counted.began - began)
    if span.objective == STEP_TIME:
        measured["metric"] = measured.get("step_ms_p50")
    elif span.objective != THROUGHPUT:
        measured["metric"] = evaluated.get(span.objective)
        if status == "ok" and measured["metric"] is None:
            status, why = "failed", f"no evaluation reported {span.objective}"
    return Measured(status, why, **common, **measured)


@dataclass(frozen=True)
class _Counted:
    """The rows after the warm-up, and the moment and samples they begin with."""

    rows: Sequence[Row]
    step: int
    began: float
    samples: float


def _counted(rows: Sequence[Row], span: TrialSpan, began: float) -> _Counted | None:
    before = [row for row in rows if row["step"] <= span.warmup_steps]
    after = [row for row in rows if row["step"] > span.warmup_steps]
    if before and after:
        return _Counted(after, before[-1]["step"], before[-1]["time"], before[-1].get("samples") or 0)
    if not after:
        return None
    first = after[0]
    # No row ends with the warm-up: without one (warmup_steps=0) the first row's own time tells when it began.
    if _is_number(first.get("step_ms")) and span.warmup_steps == 0:
        steps = first.get("window_steps") or first["step"]
        start = max(began, first["time"] - steps * first["step_ms"] / 1000)
        return _Counted(after, first["step"] - steps, start, 0)
    return _Counted(after[1:], first["step"], first["time"], first.get("samples") or 0) if after[1:] else None


def _pace(counted: _Counted, span: TrialSpan) -> dict[str, Any]:
    last = counted.rows[-1]
    windows: list[float] = []
    window_step_ms: list[float] = []
    step, began, samples = counted.step, counted.began, counted.samples
    for row in counted.rows:
        if row["step"] - step < span.window and not (row is last and not windows):
            continue
        seconds, taken = row["time"] - began, row["step"] - step
        if seconds > 0:
            windows.append(((row.get("samples") or 0) - samples) / seconds)
            window_step_ms.append(seconds / taken * 1000)
        step, began, samples = row["step"], row["time"], row.get("samples") or 0
    wall_s = last["time"] - counted.began
    done = (last.get("samples") or 0) - counted.samples
    found: dict[str, Any] = {
        "counted_steps": last["step"] - counted.step,
        "samples_per_s": done / wall_s if wall_s > 0 and done > 0 else None,
        "windows": tuple(windows),
        "window_step_ms": tuple(window_step_ms),
    }
    for name in ("step_ms_p50", "step_ms_p90", "data_ms"):
        values = [row[name] for row in counted.rows if _is_number(row.get(name))]
        found[name] = statistics.fmean(values) if values else None
    return found


def _losses(rows: Sequence[Row]) -> tuple[tuple[int, float], ...]:
    """Samples and loss of its rows, from the first one on, at most so many; whoever compares averages over stretches.

    Not means over windows: those of a larger batch span more samples, and the mean of a falling curve lies above it.
    """
    known = [
        (int(row["samples"]), float(row["loss"]))
        for row in rows
        if row.get("samples") is not None and isinstance(row.get("loss"), int | float) and math.isfinite(row["loss"])
    ]
    every = math.ceil(len(known) / _MOST_LOSSES) if known else 1
    return tuple(known[every - 1 :: every])


def _status(run: Run, rows: Sequence[Row], counted: _Counted | None, span: TrialSpan) -> tuple[str, str]:
    failures = run.events_of("failure")
    primary = [event for event in failures if not event.get("secondary")] or failures
    for event in primary:
        status = _STATUS_OF_ERROR.get(str(event.get("error")))
        if status is not None:
            return status, str(event["problems"][0]["what"])
    if run.run.state != "finished":
        return "failed", run.run.reason or run.run.state
    if rows and rows[-1].get("loss") is not None and not math.isfinite(rows[-1]["loss"]):
        return "diverged", f"the loss is not a number at step {rows[-1]['step']:,}"
    if counted is None:
        return "failed", f"it reported no step after the warm-up of {span.warmup_steps} steps"
    # A script that tells every tenth step ends between two lines.
    if rows[-1]["step"] < span.total and rows[-1]["step"] + (rows[-1].get("window_steps") or 1) <= span.total:
        return "failed", f"it ended by itself after step {rows[-1]['step']:,}; {span.total:,} were asked for"
    return "ok", ""


def _last_evaluation(run: Run) -> dict[str, float]:
    """The metrics of the last evaluation of the split that decides, whichever lines they came in."""
    if not run.validation:
        return {}
    split = run.validation[0].get("split")
    apart = {"attempt", "step", "epoch", "samples", "split", "num_samples", "time"}
    found: dict[str, float] = {}
    for row in run.validation:
        if row.get("split") == split:
            found |= {name: float(value) for name, value in row.items() if name not in apart and _is_number(value)}
    return found


def _choices(run: Run) -> dict[str, dict[str, Any]]:
    fields = ("requested", "effective", "reason")
    return {str(event["about"]): {name: event.get(name) for name in fields} for event in run.events_of("choice")}


def _rank_spread(run: Run, warmup_steps: int) -> float | None:
    """How much longer the rank that waits most waits than the one that waits least: the slow one waits least."""
    waits = []
    world_size = run.run.attempts[-1].world_size if run.run.attempts else 1
    for rank in range(world_size if world_size > 1 else 0):
        with contextlib.suppress(OSError):
            rows = [row for row in run.timing(rank) if row["step"] > warmup_steps and _is_number(row.get("wait_ms"))]
            if rows:
                waits.append(statistics.fmean(row["wait_ms"] for row in rows))
    return max(waits) - min(waits) if len(waits) > 1 else None


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
