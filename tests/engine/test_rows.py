"""Rows of metrics.csv that are written a step late, as on a GPU, are the rows that are written at once."""

from __future__ import annotations

import pytest

from paceline.engine.build import build_trainer
from paceline.engine.timing import StepTimer
from paceline.errors import NonFiniteError
from paceline.telemetry.reader import read_run
from tests.engine.conftest import Regression, build_context

UNTIMED = ("attempt", "step", "epoch", "samples", "loss", "lr", "grad_norm", "window_steps")


def train(root, workload=None, **sections):
    root.mkdir()
    usual = {
        "train": {"max_steps": 23, "global_batch": 13},
        "telemetry": {"tensorboard": False, "log_every": 4, "profile": {"start_step": 10, "num_steps": 3}},
        "evaluate": {"every_steps": 8, "every_epochs": None},
        "checkpoint": {"every_steps": 6},
    }
    trainer = build_trainer(build_context(root, usual | sections), workload or Regression())
    try:
        trainer.run()
    finally:
        trainer.close()
    return read_run(root)


def test_late_rows_are_the_same_rows(tmp_path, monkeypatch):
    at_once = train(tmp_path / "at_once")
    monkeypatch.setattr(StepTimer, "is_late", True)
    late = train(tmp_path / "late")
    assert [row["step"] for row in late.metrics] == [4, 8, 9, 12, 16, 20, 23]
    for ours, theirs in zip(late.metrics, at_once.metrics, strict=True):
        assert [ours[name] for name in UNTIMED] == [theirs[name] for name in UNTIMED]
        if ours["step_ms"] is not None:
            per_step = ours["samples_per_s"] * ours["step_ms"] / 1e3
            assert per_step == pytest.approx(theirs["samples_per_s"] * theirs["step_ms"] / 1e3), (
                "whose samples they are"
            )
    evaluated = {row["step"]: row["time"] for row in late.validation}
    logged = {row["step"]: row["time"] for row in late.metrics}
    assert all(logged[step] <= evaluated[step] for step in (8, 16)), "before the evaluation of the same step"


class Broken(Regression):
    """Its loss is not a number in step 9, right after a row is due."""

    calls = 0

    def loss(self, model, batch):
        self.calls += 1
        loss_sum, weight = super().loss(model, batch)
        return loss_sum * (float("nan") if self.calls == 9 else 1), weight


def test_no_row_is_lost_when_the_run_ends_badly(tmp_path, monkeypatch):
    monkeypatch.setattr(StepTimer, "is_late", True)
    quiet = {"evaluate": {"every_epochs": None}, "checkpoint": {"enabled": False}}
    with pytest.raises(NonFiniteError):
        train(tmp_path / "run", Broken(), telemetry={"tensorboard": False, "log_every": 4}, **quiet)
    assert [row["step"] for row in read_run(tmp_path / "run").metrics] == [4, 8]
