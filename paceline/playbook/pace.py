"""The pace of a run over its last steps: mean, spread, and the rows of metrics.csv that they were taken from.

    read_pace(read_run(Path("runs/a")), 50)     -> Pace(mean=1030.2, std=11.0, unit="items/s", first_step=151, last_step=200, num_rows=10)

A run that is shorter has the window that its steps allow; its first row is left out, because it holds the warm-up: where there is no other,
the window says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.playbook.state import RECORD
from paceline.reports.amounts import counted
from paceline.telemetry.amount import show_amount
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row, Run

WINDOW = 50


@dataclass(frozen=True)
class Pace:
    """Over so many rows, each the mean of the steps in it."""

    mean: float
    std: float | None
    """None: one row has no deviation"""
    unit: str
    first_step: int
    last_step: int
    num_rows: int
    column: str
    is_cold: bool = False
    """there is but the first row of the run, which holds the warm-up"""

    @property
    def window(self) -> str:
        rows = counted(self.num_rows, "row") + (", with the warm-up" if self.is_cold else "")
        return f"steps {self.first_step:,} to {self.last_step:,} ({rows})"

    @property
    def shown(self) -> str:
        spread = f" ± {show_amount(self.std)}" if self.std is not None else ""
        return f"{show_amount(self.mean)}{spread} {self.unit}"


def read_pace(run: Run, num_steps: int = WINDOW) -> Pace | None:
    """None where no row tells a rate."""
    if not run.timed:
        return None
    attempt = run.timed[-1]["attempt"]
    rows = [row for row in run.timed if row["attempt"] == attempt]
    is_cold = len(rows) == 1
    rows = rows[1:] or rows
    unit, column, rates = _rates(run, rows)
    last = rows[-1]["step"]
    kept = [(row, rate) for row, rate in zip(rows, rates, strict=True) if row["step"] > last - num_steps]
    if any(rate is None for _, rate in kept):
        return None
    values = [rate for _, rate in kept if rate is not None]
    first = kept[0][0]
    begun = first["step"] - int(first.get("window_steps") or 1) + 1
    std = statistics.stdev(values) if len(values) > 1 else None
    return Pace(statistics.fmean(values), std, unit, begun, last, len(values), column, is_cold)


def rates_of(run: Run, rows: Sequence[Row]) -> list[float | None]:
    """The pace of each row, in one unit."""
    return _rates(run, rows)[2]


def _rates(run: Run, rows: Sequence[Row]) -> tuple[str, str, list[float | None]]:
    """In the recipe's unit where every row has it, else in samples, else in steps."""
    plans = run.events_of("plan")
    unit = str((plans[-1].get("unit") if plans else None) or "units")
    for column, name in (("units_per_s", unit), ("samples_per_s", "samples")):
        if rows and all(is_finite(row.get(column)) for row in rows):
            return f"{name}/s", column, [row[column] for row in rows]
    return "steps/s", "step_ms", [1000 / row["step_ms"] if is_finite(row.get("step_ms")) else None for row in rows]


def short(path: Path) -> str:
    """A file of a phase as a table names it: from the playbook's directory on, PHASE/run/FILE."""
    root = next((folder for folder in path.parents if (folder / RECORD).is_file()), None)
    return str(path.relative_to(root)) if root is not None else "/".join(path.parts[-3:])
