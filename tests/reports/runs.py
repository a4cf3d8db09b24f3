"""Runs for the tests of reports: facts without files, and copies of the checked-in run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.launch.results import result_rows
from paceline.reports.run_facts import RunFacts
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import Row, Run
from paceline.telemetry.run_file import Attempt, RunFile

EXAMPLE = Path(__file__).parent.parent / "data" / "run-v1"


def copy_example(root: Path) -> RunLayout:
    shutil.copytree(EXAMPLE, root)
    return RunLayout(root)


def window(step: int, rate: float = 100.0, steps: int = 10, attempt: int = 1, **more: Any) -> Row:
    """A row of metrics.csv; samples come one per step, so that a step of a window takes 1/rate."""
    row = {"attempt": attempt, "step": step, "loss": 2.0, "window_steps": steps, "samples_per_s": rate}
    return row | {"step_ms": 1e3 / rate if rate else 0.0, "step_ms_std": 0.0} | more


def build_facts(
    metrics: Sequence[Row] = (),
    validation: Sequence[Row] = (),
    events: Sequence[Row] = (),
    *,
    attempts: Sequence[Attempt] = (),
    state: str = "finished",
    is_owned: bool | None = False,
    **more: Any,
) -> RunFacts:
    started = list(attempts) or [Attempt(1, 2, 7, 1e9, "", ["paceline", "train"], state, "length", 20, 0, 1e9 + 90)]
    run_file = RunFile("0123456789ab", "toy", "", "0.1.0", 1e9, {}, state, "length", attempts=started)
    told = [{"attempt": 1, "time": 1e9} | event for event in events]
    run = Run(RunLayout(Path("runs/a")), run_file, list(metrics), list(validation), told)
    return RunFacts(run, result_rows(run), is_owned, 1e9 + 100, **more)
