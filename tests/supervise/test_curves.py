from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from paceline.supervise import curves
from paceline.supervise.curves import Curves
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.tables import METRICS_COLUMNS, Table


def test_the_tables_are_judged_now_and_then_and_only_of_this_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(curves.time, "monotonic", lambda: clock[0])
    layout = RunLayout(tmp_path)
    table = Table(layout.metrics, METRICS_COLUMNS)
    table.write({"attempt": 1, "step": 5, "loss": float("nan"), "grad_norm": 1.0})
    watched = Curves(layout, attempt=2)
    for step in range(1, 5):
        table.write({"attempt": 2, "step": step, "loss": 4.0 - 0.1 * step, "grad_norm": 1.0})
    clock[0] += 11
    assert watched.judge() == [], "what was not finite was the attempt before"
    table.write({"attempt": 2, "step": 5, "loss": float("nan"), "grad_norm": 1.0})
    assert watched.judge() == [], "not yet looked again"
    clock[0] += 11
    (finding,) = watched.judge()
    assert (finding.kind, finding.step) == ("not_finite", 5)
    clock[0] += 11
    assert watched.judge() == [finding], "it holds"


def test_a_resumed_run_near_its_end_is_not_called_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(curves.time, "monotonic", lambda: clock[0])
    dice = random.Random(3)
    layout = RunLayout(tmp_path)
    table = Table(layout.metrics, METRICS_COLUMNS)
    for step in range(1, 700):
        loss = 2 + 5 * math.exp(-step / 3) + dice.gauss(0, 0.1)
        table.write({"attempt": 1 if step <= 60 else 2, "step": step, "loss": loss, "grad_norm": 1.0})
    watched = Curves(layout, attempt=2)
    clock[0] += 11
    assert watched.judge() == []
