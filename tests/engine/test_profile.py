"""Profiled steps: a trace and a table that can be read, rows without times, and not a bit of difference in the training."""

from __future__ import annotations

import gzip
import json

import pytest

from paceline.engine.build import build_trainer
from paceline.engine.profile import StepProfile
from paceline.telemetry.reader import read_run
from paceline.telemetry.tables import WINDOW_TIMES, read_table
from tests.engine.conftest import Regression, build_context


def train(root, **telemetry):
    sections = {
        "train": {"max_steps": 10, "global_batch": 13, "micro_batch": 7},
        "telemetry": {"tensorboard": False, "log_every": 4, **telemetry},
    }
    root.mkdir()
    trainer = build_trainer(build_context(root, sections), Regression())
    trainer.run()
    trainer.close()
    return read_run(root)


def test_a_window_of_steps(tmp_path):
    run = train(tmp_path / "profiled", profile={"start_step": 3, "num_steps": 3})
    assert [row["step"] for row in run.metrics] == [2, 4, 5, 8, 10], "rows end where the window does"
    for row in run.metrics:
        is_untimed = row["step"] in (4, 5)
        for name in (*WINDOW_TIMES, "samples_per_s", "units_per_s"):
            assert (row[name] is None) == is_untimed, (row["step"], name)
    assert [row["step"] for row in run.timed] == [2, 8, 10]

    (event,) = run.events_of("profile")
    assert (event["first_step"], event["last_step"], event["ranks"]) == (3, 5, [0])
    trace, table = (run.layout.root / name for name in event["files"])
    names = [entry.get("name") for entry in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert {"step 3", "step 5", "data", "forward", "backward", "optimizer"} <= set(names)
    assert "step 2" not in names
    assert "step 6" not in names
    rows = read_table(table)
    assert {row["kind"] for row in rows} == {"operator"}, "there is no GPU"
    assert "aten::addmm" in {row["name"] for row in rows}
    assert "forward" not in {row["name"] for row in rows}, "marks contain everything"
    assert rows[0]["host_ms"] == max(row["host_ms"] for row in rows)
    assert sum(row["share"] for row in rows) == pytest.approx(1)

    plain = train(tmp_path / "plain", log_every=1)
    losses = {row["step"]: (row["loss"], row["grad_norm"]) for row in plain.metrics}
    assert {row["step"]: (row["loss"], row["grad_norm"]) for row in run.metrics} == {
        s: losses[s] for s in (2, 4, 5, 8, 10)
    }


def test_a_window_that_reaches_beyond_either_end(make_context):
    def window(start_step: int, first_step: int) -> StepProfile:
        config = {"telemetry": {"profile": {"start_step": start_step, "num_steps": 4}}}
        return StepProfile(make_context(config), first_step, 10, use_graph=False)

    resumed = window(3, 5)
    assert [step for step in range(11) if resumed.is_border(step)] == [4, 6]
    assert resumed.begins_after(4)
    past = window(3, 7)
    assert [step for step in range(11) if past.is_border(step)] == []
    at_the_end = window(9, 1)
    assert [step for step in range(11) if at_the_end.is_border(step)] == [8, 10]


def test_a_stop_ends_the_window(tmp_path, monkeypatch):
    context = build_context(
        tmp_path,
        {
            "train": {"max_steps": 50, "global_batch": 13},
            "telemetry": {"tensorboard": False, "profile": {"start_step": 2, "num_steps": 40}},
        },
    )
    trainer = build_trainer(context, Regression())
    run_step = trainer._step.run

    def stopping(step, batches):
        if step == 6:
            context.watch.reason = "stop_command"
        return run_step(step, batches)

    monkeypatch.setattr(trainer._step, "run", stopping)
    ending = trainer.run()
    trainer.close()
    assert ending.state == "stopped"
    (event,) = read_run(tmp_path).events_of("profile")
    assert (event["first_step"], event["last_step"]) == (2, ending.step)
    assert ending.step < 10
