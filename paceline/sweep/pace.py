"""The pace of a trial: throughput over true wall time after the warm-up, in windows that do not overlap.

measure_pace(find_counted(rows, span, began), span)   -> {"samples_per_s": 1030.2, "windows": (1021.0, …), "step_ms_p50": 15.5, …}
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.sweep.plan import THROUGHPUT
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row


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
class Counted:
    """The rows after the warm-up, and the moment and samples they begin with."""

    rows: Sequence[Row]
    step: int
    began: float
    samples: float


def find_counted(rows: Sequence[Row], span: TrialSpan, began: float) -> Counted | None:
    after = [row for row in rows if row["step"] >= max(span.warmup_steps, 1)]
    if not after:
        return None
    first = after[0]
    if span.warmup_steps == 0 and is_finite(first.get("step_ms")):
        # No row ends with the warm-up: the first row's own time tells when it began.
        steps = first.get("window_steps") or first["step"]
        start = max(began, first["time"] - steps * first["step_ms"] / 1000)
        return Counted(after, first["step"] - steps, start, 0)
    # The first row that ends after the warm-up, not the last one before its end: all that is counted comes after it.
    return Counted(after[1:], first["step"], first["time"], first.get("samples") or 0) if after[1:] else None


def measure_pace(counted: Counted, span: TrialSpan) -> dict[str, Any]:
    last, units = counted.rows[-1], _units(counted)
    amounts = units or [(row.get("samples") or 0) for row in counted.rows]
    first_amount = 0.0 if units else counted.samples
    windows: list[float] = []
    window_step_ms: list[float] = []
    step, began, amount = counted.step, counted.began, first_amount
    for row, reached in zip(counted.rows, amounts, strict=True):
        if row["step"] - step < span.window and not (row is last and not windows):
            continue
        seconds, taken = row["time"] - began, row["step"] - step
        if seconds > 0:
            windows.append((reached - amount) / seconds)
            window_step_ms.append(seconds / taken * 1000)
        step, began, amount = row["step"], row["time"], reached
    wall_s = last["time"] - counted.began
    done = (last.get("samples") or 0) - counted.samples
    found: dict[str, Any] = {
        "counted_steps": last["step"] - counted.step,
        "samples_per_s": done / wall_s if wall_s > 0 and done > 0 else None,
        "units_per_s": units[-1] / wall_s if units and wall_s > 0 else None,
        "windows": tuple(windows),
        "window_step_ms": tuple(window_step_ms),
    }
    for name in ("step_ms_p50", "step_ms_p90", "data_ms"):
        values = [row[name] for row in counted.rows if is_finite(row.get(name))]
        found[name] = statistics.fmean(values) if values else None
    return found


def _units(counted: Counted) -> list[float] | None:
    """How many units had been done at the end of each row; None where none tells.

    A row tells units and samples per second of its own time: their ratio is what a sample holds. Rows without times (a profiler or a
    compiler was at work) hold what the others do.
    """
    held = [_units_per_sample(row) for row in counted.rows]
    known = [ratio for ratio in held if ratio is not None]
    if not known:
        return None
    usual = statistics.fmean(known)
    reached, samples, found = 0.0, counted.samples, []
    for row, ratio in zip(counted.rows, held, strict=True):
        reached += (usual if ratio is None else ratio) * ((row.get("samples") or 0) - samples)
        samples = row.get("samples") or 0
        found.append(reached)
    return found if reached > 0 else None


def _units_per_sample(row: Row) -> float | None:
    units, samples = row.get("units_per_s"), row.get("samples_per_s")
    return units / samples if is_finite(units) and is_finite(samples) and samples else None
