"""Where an attempt of a foreign loop begins, and whose directory it may take."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from paceline import start_run
from paceline.errors import OccupiedError, UsageError
from paceline.telemetry.reader import read_run
from tests.telemetry.sdk.loops import CONFIG, NATIVE, train


def test_a_further_attempt_goes_on_where_the_caller_says(tmp_path: Path) -> None:
    with start_run(tmp_path, CONFIG, may_change=["epochs"], log_every=2) as run:
        train(run, 7)
    with start_run(tmp_path, CONFIG | {"epochs": 2}, may_change=["epochs"], log_every=2, start_step=4) as run:
        assert (run.attempt, run.last_step) == (2, 4)
        train(run, 5)
        run.validation(step=7, accuracy=0.5)
        run.validation(accuracy=0.75, other=1.0)
    with start_run(tmp_path, CONFIG | {"epochs": 2}, log_every=2, start_step=8, start_samples=100) as run:
        run.step(samples=1)
    found = read_run(tmp_path)
    assert [(row["attempt"], row["step"], row["samples"]) for row in found.metrics] == [
        (1, 2, 8),
        (1, 4, 16),
        (2, 6, 24),
        (2, 8, 32),
        (3, 9, 101),
    ]
    assert found.run.attempts[1].changed == ["epochs: 1 → 2"]
    assert found.run.attempts[2].changed == []
    assert [row["step"] for row in found.validation] == [7]  # attempt 3 began at step 8
    assert found.events_of("evaluation")[1]["metrics"] == {"accuracy": 0.75, "other": 1.0}
    assert "no column for other" in found.events_of("warning")[0]["what"]
    with start_run(tmp_path, CONFIG | {"epochs": 2}, start_step=3) as run:
        run.step(samples=1)  # how many came before step 3 is not known
    assert read_run(tmp_path).metrics[-1]["samples"] is None


def test_the_first_step_says_where_an_attempt_begins_that_was_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_run(tmp_path, CONFIG, log_every=2) as run:
        train(run, 7)
    start_run(tmp_path, CONFIG).finish()  # without a step it has replaced nothing
    with start_run(tmp_path, CONFIG, log_every=2) as run:
        for step in (5, 6, 7):
            run.step(loss=1.0, samples=4, step=step)
    found = read_run(tmp_path)
    rows = [(row["attempt"], row["step"], row["samples"], row["window_steps"]) for row in found.metrics]
    assert rows == [(1, 2, 8, 2), (1, 4, 16, 2), (3, 6, 24, 2), (3, 7, 28, 1)]
    assert [plan["start_step"] for plan in found.events_of("plan")] == [0, 4]
    assert found.events_of("note", attempt=3)[-1]["what"] == "goes on from step 4"
    assert caplog.records == []
    with start_run(tmp_path, CONFIG, log_every=2) as run:
        train(run, 3)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the run had reached step 7; this attempt begins anew at step 0; give start_step=7 to go on"]
    found = read_run(tmp_path)
    assert [event["what"] for event in found.events_of("warning")] == said
    assert [(row["attempt"], row["step"], row["samples"]) for row in found.metrics] == [(4, 2, 8), (4, 3, 12)]


def test_a_configuration_with_nan_is_the_same_run_again(tmp_path: Path) -> None:
    for attempt in (1, 2):
        with start_run(tmp_path, {"clip": math.nan, "most": math.inf}) as run:
            assert run.attempt == attempt
    assert "NaN" not in (tmp_path / "run.json").read_text()
    assert "Infinity" not in (tmp_path / "run.json").read_text()
    with pytest.raises(OccupiedError, match=r"clip: '\.nan' → 1\.0"):
        start_run(tmp_path, {"clip": 1.0, "most": math.inf})


def test_another_runs_directory_is_refused(tmp_path: Path) -> None:
    native = tmp_path / "native"
    native.mkdir()
    (native / "run.json").write_text((NATIVE / "run.json").read_text())
    before = (native / "run.json").read_text()
    with pytest.raises(OccupiedError, match="recipe sasrec, which Paceline itself trains"):
        start_run(native)
    assert (native / "run.json").read_text() == before

    start_run(tmp_path / "mine", CONFIG).finish()
    with pytest.raises(OccupiedError) as caught:
        start_run(tmp_path / "mine", CONFIG | {"lr": 0.2, "epochs": 9}, may_change=["epochs"])
    assert "lr: 0.1 → 0.2" in str(caught.value)
    assert "epochs" not in str(caught.value)
    with pytest.raises(OccupiedError, match=r"model.width: 8 → None"):
        start_run(tmp_path / "mine")

    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").touch()
    with pytest.raises(OccupiedError, match=r"it holds thesis.tex"):
        start_run(tmp_path / "thesis")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="a file stands where") as refused:
        start_run(tmp_path / "file")
    assert "--out" not in refused.value.problems[0].do

    run = start_run(tmp_path / "mine", CONFIG)
    with pytest.raises(OccupiedError, match=f"process {os.getpid()} owns it"):
        start_run(tmp_path / "mine", CONFIG)
    run.finish()
    assert [attempt.state for attempt in read_run(tmp_path / "mine").run.attempts] == ["finished", "finished"]


def test_the_native_launcher_refuses_it_in_turn(tmp_path: Path) -> None:
    from paceline.launch.claim import claim_run
    from paceline.launch.description import RunDescription

    start_run(tmp_path, CONFIG).finish()
    description = RunDescription("toy", "", [], "recipe: toy", {}, {"fingerprint": "a", "values": {"recipe": "toy"}})
    with pytest.raises(OccupiedError, match="holds a run of the SDK"):
        claim_run(tmp_path, description, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_step": -1},
        {"start_step": "x"},
        {"start_samples": 1.5},
        {"total_steps": 2**63},
        {"log_every": 0},
        {"log_every": 2.5},
        {"may_change": ["no"]},
        {"may_change": "abc", "config": {"a": 1, "b": 2, "c": 3}},
        {"rank": 1},
        {"config": [1]},
        {"config": {"x": "\ud800"}},
        {"name": "\ud800"},
        {"unit": 3},
        {"heartbeat_s": -2},
        {"heartbeat_s": "5"},
        {"heartbeat_s": math.nan},
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(UsageError) as caught:
        start_run(tmp_path / "a", **wrong)
    (problem,) = caught.value.problems
    assert problem.what
    assert problem.where.startswith("start_run")
    assert problem.do
    assert not (tmp_path / "a").exists()
    for out in (7, "a\0b", "\ud800"):
        with pytest.raises(UsageError, match="is not a path"):
            start_run(out)
