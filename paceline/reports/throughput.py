"""How fast a run was in its last steps: mean, standard deviation and count, with what was left out and why.

    measure_throughput(run.metrics, window=50)
    -> Throughput(rate=Spread(mean=1030.2, std=41.3), step_ms=Spread(31.1, 2.0), num_steps=50, num_windows=5, …)

A row of metrics.csv stands for a window of steps, and windows differ in length. The mean rate is all samples over all time: the rate of a
window weighs as much as its steps took, in the mean and in the deviation between windows. A plain mean of rates would be too high. The
mean time of a step weighs windows by their steps, and its deviation is that of single steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.reports.amounts import counted, steps_between
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row


@dataclass(frozen=True)
class Spread:
    """A mean and the deviation around it; None where one value has no deviation, or nothing tells it."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Throughput:
    """The pace of some consecutive windows of one attempt."""

    rate: Spread
    """samples per second, over all ranks"""
    units: Spread | None
    """the same in the recipe's own unit"""
    step_ms: Spread
    num_steps: int
    num_windows: int
    first_step: int
    last_step: int
    attempt: int
    excluded: tuple[str, ...]


def measure_throughput(rows: Sequence[Row], window: int) -> Throughput | None:
    """Of the last `window` steps of the newest attempt, rounded up to whole windows; None where no row tells a pace."""
    if not rows:
        return None
    attempt = rows[-1]["attempt"]
    own = [row for row in rows if row["attempt"] == attempt]
    excluded = []
    if len(own) < len(rows):
        excluded.append(f"{counted(len(rows) - len(own), 'row')} of earlier attempts")
    if len(own) > 1:
        excluded.append(f"the first window of attempt {attempt} ({_steps(own[:1])}): start-up and warming caches")
        own = own[1:]
    chosen: list[Row] = []
    num_steps = num_untimed = 0
    for row in reversed(own):
        if num_steps >= window:
            break
        if _is_timed(row):
            chosen.insert(0, row)
            num_steps += row["window_steps"]
        else:
            num_untimed += 1
    if not chosen:
        return None
    if num_untimed:
        excluded.append(f"{counted(num_untimed, 'row')} without a rate or a time")
    if len(own) == 1 and not any("first window" in why for why in excluded):
        excluded.append("nothing: this is the attempt's only window, and its start-up is in it")
    has_units = all(is_finite(row.get("units_per_s")) for row in chosen)
    return Throughput(
        _rate(chosen, "samples_per_s"),
        _rate(chosen, "units_per_s") if has_units else None,
        _step_time(chosen, num_steps),
        num_steps,
        len(chosen),
        chosen[0]["step"] - chosen[0]["window_steps"] + 1,
        chosen[-1]["step"],
        attempt,
        tuple(excluded),
    )


def _is_timed(row: Row) -> bool:
    numbers = (row.get("samples_per_s"), row.get("step_ms"))
    steps = row.get("window_steps")
    return all(is_finite(value) and value >= 0 for value in numbers) and isinstance(steps, int) and steps > 0


def _steps(rows: Sequence[Row]) -> str:
    steps = rows[0].get("window_steps")
    first = rows[0]["step"] - steps + 1 if isinstance(steps, int) else rows[0]["step"]
    return steps_between(first, rows[-1]["step"])


def _rate(rows: Sequence[Row], name: str) -> Spread:
    seconds = [row["window_steps"] * row["step_ms"] / 1e3 for row in rows]
    total = math.fsum(seconds)
    if total == 0:
        return Spread(rows[-1][name], None)
    mean = math.fsum(row[name] * time for row, time in zip(rows, seconds, strict=True)) / total
    if len(rows) < 2:
        return Spread(mean, None)
    around = math.fsum(time * (row[name] - mean) ** 2 for row, time in zip(rows, seconds, strict=True)) / total
    return Spread(mean, math.sqrt(around * len(rows) / (len(rows) - 1)))


def _step_time(rows: Sequence[Row], num_steps: int) -> Spread:
    """Of single steps: what deviates inside the windows, and the windows among each other."""
    mean = math.fsum(row["window_steps"] * row["step_ms"] for row in rows) / num_steps
    if num_steps < 2 or not all(is_finite(row.get("step_ms_std")) for row in rows):
        return Spread(mean, None)
    squares = math.fsum(
        (row["window_steps"] - 1) * row["step_ms_std"] ** 2 + row["window_steps"] * (row["step_ms"] - mean) ** 2
        for row in rows
    )
    return Spread(mean, math.sqrt(squares / (num_steps - 1)))
