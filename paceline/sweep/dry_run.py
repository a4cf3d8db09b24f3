"""What a sweep would do, in lines: its matrix, what it costs at most, and how long that should take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paceline.sweep.journal import duration
from paceline.sweep.ledger import Ledger, Row
from paceline.sweep.opening import LEDGER
from paceline.sweep.outcome import Sweep
from paceline.sweep.power import LEAST_REPEATS

_GUESSED_START_S = 10.0
_GUESSED_STEP_S = 0.1


def describe_dry_run(sweep: Sweep) -> list[str]:
    """The lines of `--dry-run`; reads the ledger where there is one, and starts nothing."""
    cases = sweep.matrix.cases
    lines = [f"sweep directory {sweep.root}", f"{len(cases)} cases" + _excluded(sweep)]
    for case in cases:
        mark = "   baseline" if case.name == sweep.matrix.baseline else ""
        ranks = case.placement.world_size
        where = f"{case.placement.num_gpus} GPUs" if case.placement.num_gpus else "CPU"
        lines.append(f"  {case.name}   {ranks} rank{'' if ranks == 1 else 's'}, {where}{mark}")
    settings = sweep.settings
    repeats = settings.repeats or LEAST_REPEATS
    given = f"repeats={repeats}" if settings.repeats else f"{repeats} repeats (repeats=auto; the noise will tell)"
    num = len(cases) * repeats
    how = "at most, racing ends what is decided" if settings.racing else "the full grid"
    lines.append(f"{num} trials of {settings.warmup_steps + settings.steps:,} steps: {given}, {how}")
    trial_s, said = _trial_seconds(sweep)
    devices = statistics.fmean(max(1, case.placement.num_gpus) for case in cases)
    slots = sweep.plan.config.slots
    lines.append(f"a trial: {duration(trial_s)} ({said})")
    lines.append(f"cost: {num * trial_s * devices:,.0f} device-seconds; time: {duration(num * trial_s / slots)}")
    lines.append(f"never more than {duration(num * sweep.plan.config.trial_timeout_s / slots)} (trial_timeout_s)")
    return lines


def _excluded(sweep: Sweep) -> str:
    num = sweep.matrix.num_excluded
    return f" ({num} left out by exclude)" if num else ""


def _trial_seconds(sweep: Sweep) -> tuple[float, str]:
    steps = sweep.settings.warmup_steps + sweep.settings.steps
    rows = _rows(sweep)
    timed = [_scaled(row, steps) for row in rows if row.status in ("ok", "stopped") and row.record]
    if timed:
        return statistics.fmean(timed), f"mean of {len(timed)} earlier trials in the ledger, for as many steps"
    guess = _GUESSED_START_S + steps * _GUESSED_STEP_S
    return (
        guess,
        f"a guess, nothing was measured yet: {_GUESSED_START_S:g} s to start, {_GUESSED_STEP_S * 1000:g} ms a step",
    )


def _scaled(row: Row, steps: int) -> float:
    assert row.record is not None
    start, whole = float(row.record["startup_s"]), float(row.record["duration_s"])
    return start + (whole - start) * steps / max(1, row.steps + row.warmup_steps)


def _rows(sweep: Sweep) -> Sequence[Row]:
    path = sweep.root / LEDGER
    if not path.exists():
        return []
    ledger = Ledger(path)
    try:
        return ledger.rows()
    finally:
        ledger.close()
