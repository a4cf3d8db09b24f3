"""What a trial came to, from its run directory: how it ended, its pace (pace.py), its losses and metrics.

    read_trial(root, TrialSpan(warmup_steps=20, steps=280, window=50), …)   -> Measured(samples_per_s=1030.2, windows=(1021.0, …), …)

A trial that failed has numbers as far as it got.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.sweep.measured import Measured
from paceline.sweep.pace import Counted, TrialSpan, find_counted, measure_pace
from paceline.sweep.plan import COMMAND
from paceline.sweep.ranks import judge_ranks, measure_spread, read_timing
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row, Run, read_run
from paceline.telemetry.tables import NOT_METRICS

_MOST_LOSSES = 300
_STATUS_OF_ERROR = {"OutOfMemoryError": "oom", "NonFiniteError": "diverged"}


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
        "devices": num_devices,
        "startup_s": duration_s,
        "exit_code": exit_code,
    }
    try:
        run = read_run(root)
    except PacelineError:
        why = reason or "it ended before it had a run directory"
        return Measured(verdict or "failed", why, **common)
    rows = [row for row in run.metrics if isinstance(row.get("time"), int | float)]
    counted = find_counted(rows, span, began)
    status, why = _status(run, rows, counted, span)
    if verdict is not None:
        status, why = verdict, reason or why
    tables = read_timing(run, span.warmup_steps)
    measured: dict[str, Any] = {
        "last_step": _last_step(run, rows),
        "final_loss": _finite(rows[-1].get("loss")) if rows else None,
        "samples": rows[-1].get("samples") if rows else None,
        "losses": _losses(rows),
        "metrics": _last_evaluation(run),
        "world_size": run.run.attempts[-1].world_size if run.run.attempts else None,
        "choices": _choices(run),
        "rank_spread_ms": measure_spread(tables),
        "ranks": judge_ranks(run, tables) if run.run.recipe != COMMAND else None,
        "memory_gib": max((row["memory_gib"] for row in rows if is_finite(row.get("memory_gib"))), default=None),
    }
    if counted is not None:
        measured |= measure_pace(counted, span)
        measured["unit"] = _unit(run) if measured["units_per_s"] is not None else None
        common["startup_s"] = max(0.0, counted.began - began)
    return Measured(status, why, **common, **measured).for_objective(span.objective)


def _unit(run: Run) -> str:
    plans = run.events_of("plan")
    return str((plans[-1].get("unit") if plans else None) or "units")


def _losses(rows: Sequence[Row]) -> tuple[tuple[int, float], ...]:
    """Samples and loss of its rows, from the first one on, at most so many; whoever compares averages over stretches.

    Not means over windows: those of a larger batch span more samples, and the mean of a falling curve lies above it.
    """
    known = [
        (int(row["samples"]), float(row["loss"]))
        for row in rows
        if row.get("samples") is not None and isinstance(row.get("loss"), int | float)
    ]
    every = math.ceil(len(known) / _MOST_LOSSES) if known else 1
    # One that is not a number stays, whatever is left out: it is what the guard looks for.
    chosen = (n % every == every - 1 or not math.isfinite(loss) for n, (_, loss) in enumerate(known))
    return tuple(point for point, is_kept in zip(known, chosen, strict=True) if is_kept)


def _divergence(rows: Sequence[Row]) -> str | None:
    """Says it where the loss had become no number by the end, or was told and then no more: a script's `nan` may match no expression."""
    told = [number for number, row in enumerate(rows) if isinstance(row.get("loss"), int | float)]
    if not told:
        return None
    last = rows[told[-1]]
    if not math.isfinite(last["loss"]):
        return f"the loss is not a number at step {last['step']:,}"
    widest = max((after - before for before, after in itertools.pairwise([-1, *told])), default=1)
    # The last row may have been cut short, and a loss may be told in every fifth row alone.
    if len(rows) - 1 - told[-1] > widest:
        return f"the loss was told until step {last['step']:,} and no more"
    return None


def _status(run: Run, rows: Sequence[Row], counted: Counted | None, span: TrialSpan) -> tuple[str, str]:
    failures = run.events_of("failure")
    primary = [event for event in failures if not event.get("secondary")] or failures
    for event in primary:
        status = _STATUS_OF_ERROR.get(str(event.get("error")))
        if status is not None:
            return status, str(event["problems"][0]["what"])
    if run.run.state != "finished":
        return "failed", run.run.reason or run.run.state
    divergence = _divergence(rows)
    if divergence is not None:
        return "diverged", divergence
    if counted is None:
        return "failed", f"it reported no step after the warm-up of {span.warmup_steps} steps"
    reached = _last_step(run, rows) or 0
    # A script that tells every tenth step ends between two lines, and may have begun with step 0; ours tell their last one.
    beyond = math.gcd(*(row["step"] for row in rows)) if run.run.recipe == COMMAND else 0
    if reached < span.total and reached + beyond < span.total:
        return "failed", f"it ended by itself after step {reached:,}; {span.total:,} were asked for"
    return "ok", ""


def _last_step(run: Run, rows: Sequence[Row]) -> int | None:
    told = [run.run.attempts[-1].step if run.run.attempts else None, rows[-1]["step"] if rows else None]
    return max((step for step in told if step is not None), default=None)


def _last_evaluation(run: Run) -> dict[str, float]:
    """The metrics of the last evaluation of the split that decides, whichever lines they came in."""
    if not run.validation:
        return {}
    split = run.validation[0].get("split")
    found: dict[str, float] = {}
    for row in run.validation:
        if row.get("split") == split:
            found |= {name: float(value) for name, value in row.items() if name not in NOT_METRICS and is_finite(value)}
    return found


def _choices(run: Run) -> dict[str, dict[str, Any]]:
    fields = ("requested", "effective", "reason")
    return {about: {name: event.get(name) for name in fields} for about, event in run.choices().items()}


def _finite(value: Any) -> float | None:
    return float(value) if is_finite(value) else None
