"""Mistakes in a foreign loop, and in what it tells, are said and never stop it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline import start_run
from paceline.telemetry.reader import read_run


def test_a_wrong_value_costs_itself_and_not_the_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn:
        def detach(self) -> None:
            raise RuntimeError("no")

    with start_run(tmp_path, log_every=1) as run:
        for _ in range(2):
            run.step(1.0, epoch="first", samples=-3)
            run.step(2.0, step="x", samples=2)
            run.step(3.0, step=2**63, samples=math.nan, units=-1)
            run.step(Stubborn(), epoch=1, samples=2, global_samples=math.inf)
    found = read_run(tmp_path)
    assert [(row["step"], row["loss"]) for row in found.metrics] == [
        *((1, 1.0), (2, 2.0), (3, 3.0), (4, None)),
        *((5, 1.0), (6, 2.0), (7, 3.0), (8, None)),
    ]
    assert [row["epoch"] for row in found.metrics] == [None] * 3 + [1] * 5
    assert found.metrics[-1]["samples"] == 4
    said = [record.getMessage() for record in caplog.records]
    parts = ["epoch is not a whole", "samples=-3 is left out", "step is not a whole", "units=-1", "loss cannot be"]
    assert [sum(part in text for text in said) for part in [*parts, "global_samples=inf"]] == [1] * 6, said
    assert len(said) == 6
    assert [event["what"] for event in found.events_of("warning")] == said


def test_mistakes_in_the_loop_are_said_once_and_do_not_stop_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_run(tmp_path, log_every=1) as run:
        for index in range(3):
            run.step(loss=1.0, step=index)  # counted from 0
            run.step(loss="high")
            run.step(samples="many")
            with run.phase("thinking"):
                pass
            run.event("end", state="?")
        run.validation(accuracy="good")
        run.validation(7)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 7, said
    assert "step 0 after step 0 is left out: steps are counted as they end, from 1" in said[0]
    assert "loss is not one number" in said[1]
    assert "samples is not one number" in said[2]
    assert "there is no phase 'thinking'" in said[3]
    assert "events of the kind 'end'" in said[4]
    assert "accuracy is not one number" in said[5]
    assert "run.validation could not be recorded" in said[6]
    found = read_run(tmp_path)
    assert [event["what"] for event in found.events_of("warning")] == said
    assert len(found.events_of("end")) == 1
    assert len(found.events_of("note", about="end")) == 3
    run.step(loss=1.0)  # after the end: nothing
    run.finish()
    assert read_run(tmp_path).metrics == found.metrics
