"""A foreign loop's run directory reads like a native one, and its numbers are taken when they are wanted."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline import start_run
from paceline.files import read_json
from paceline.launch.results import result_rows
from paceline.telemetry.pulse import read_pulse
from paceline.telemetry.reader import read_run
from paceline.telemetry.stop_request import write_stop_request
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS
from tests.telemetry.sdk.loops import CONFIG, NATIVE, Tensor, train, wait_until


def test_the_directory_reads_like_a_native_one(tmp_path: Path) -> None:
    native = read_run(NATIVE)
    with start_run(tmp_path / "a", CONFIG, name="mine", log_every=4, unit="tokens", total_steps=10) as run:
        train(run, 10, units=7, epoch=2, lr=0.1, grad_norm=Tensor(2.5))
        run.validation({"val/ndcg@10": 0.5}, hr_10=Tensor(0.25), num_samples=40)
        run.event("note", what="a word", time="now")
        pulses = Path(read_json(run.path / "run.json")["attempts"][0]["pulses"])
        pulse = read_pulse(pulses, 0)
        assert pulse is not None
        assert (pulse.step, pulse.phase, pulse.pid, pulse.attempt) == (11, "step", os.getpid(), 1)
    mine = read_run(tmp_path / "a")
    assert not pulses.exists()

    assert (mine.run.state, mine.run.reason, mine.run.name, mine.run.recipe) == ("finished", "length", "mine", "sdk")
    attempt = mine.run.attempts[0]
    assert (attempt.state, attempt.step, attempt.exit_code, attempt.world_size) == ("finished", 10, 0, 1)
    assert set(read_json(mine.layout.run)) >= set(read_json(native.layout.run))
    assert set(read_json(mine.layout.environment)) == set(read_json(native.layout.environment))
    assert read_json(mine.layout.origins)["model.width"].startswith("start_run at test_run.py:")
    assert mine.layout.config.read_text() == 'recipe: "sdk"\nlr: 0.1\nmodel:\n  width: 8\nepochs: 1\n'

    assert [list(row) for row in mine.metrics] == [list(METRICS_COLUMNS)] * 3 == [list(native.metrics[0])] * 3
    assert [(row["step"], row["window_steps"], row["samples"]) for row in mine.metrics] == [
        (4, 4, 16),
        (8, 4, 32),
        (10, 2, 40),
    ]
    last = mine.metrics[-1]
    assert (last["loss"], last["lr"], last["grad_norm"], last["epoch"]) == (0.1, 0.1, 2.5, 2)
    assert all(
        row[name] is not None for row in mine.metrics for name in ("step_ms", "data_ms", "samples_per_s", "memory_gib")
    )
    assert last["units_per_s"] == pytest.approx(last["samples_per_s"] * 7 / 4)
    assert last["step_ms"] * last["samples_per_s"] == pytest.approx(4000)

    (row,) = mine.validation
    assert list(row)[: len(VALIDATION_COLUMNS)] == list(VALIDATION_COLUMNS)
    assert (row["step"], row["split"], row["val_ndcg_10"], row["hr_10"], row["samples"]) == (
        10,
        "validation",
        0.5,
        0.25,
        40,
    )

    kinds = [event["kind"] for event in mine.events]
    assert kinds == ["start", "plan", "evaluation", "note", "end"]
    for kind in ("plan", "end", "evaluation"):
        assert set(mine.events_of(kind)[0]) >= set(native.events_of(kind)[0])
    assert mine.events_of("note")[0]["time_"] == "now"
    beats = mine.beats(0)
    assert set(beats[-1]) == set(native.beats(0)[-1]) | {"samples"}
    assert (beats[-1]["step"], beats[-1]["phase"], beats[-1]["loss"]) == (10, "end", 0.1)
    assert {"loss", "samples/s", "validation hr_10", "duration"} <= {name for name, *_ in result_rows(mine)}


def test_the_pulse_is_in_the_step_that_comes_and_between_steps_in_the_one_that_has_ended(tmp_path: Path) -> None:
    """So that whoever evaluates or saves alone is behind those who wait for it, and has the time that an evaluation has."""
    with start_run(tmp_path) as run:
        pulses = Path(read_json(run.path / "run.json")["attempts"][0]["pulses"])

        def place() -> tuple[int, str]:
            pulse = read_pulse(pulses, 0)
            return pulse.step, pulse.phase

        places = []
        for _ in range(2):
            for phase in ("data", "forward"):
                with run.phase(phase):
                    places.append(place())
                places.append(place())
            run.step(loss=1.0)
            places.append(place())
            with run.phase("evaluate"):
                places.append(place())
                with run.phase("data"):
                    pass
                places.append(place())
            places.append(place())
        assert places[:8] == [
            *[(1, "data"), (1, "step"), (1, "forward"), (1, "step"), (2, "step")],
            *[(1, "evaluate"), (1, "evaluate"), (2, "step")],
        ]
        assert places[8:] == [(step + 1, phase) for step, phase in places[:8]]
        assert read_pulse(pulses, 0).steps == 3, "each counts once"


def test_a_jump_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with start_run(tmp_path, log_every=10) as run:
        run.step(loss=1.0, step=1)
        run.step(loss=1.0, step=20_000_000)
        assert len(run._stopwatch._steps_s) <= 1
        run.step(loss=1.0, step=2**63 - 1)
        with run.phase("data"):
            pass
    assert caplog.records == []
    rows = [(row["step"], row["window_steps"]) for row in read_run(tmp_path).metrics]
    assert rows == [(20_000_000, 2), (2**63 - 1, 1)]


def test_a_tensor_is_read_once_per_window(tmp_path: Path) -> None:
    class Attached:
        """A loss that still holds its graph."""

        def detach(self) -> Tensor:
            return Tensor(5.0)

    losses: list = [Tensor(float(step)) for step in range(1, 11)]
    with start_run(tmp_path, log_every=5) as run:
        run.step(loss=Attached())
        assert isinstance(run._tally._loss, Tensor), "the graph must not live until the next step"
    with start_run(tmp_path, log_every=5) as run:
        for loss in losses[:-2]:
            run.step(loss=loss)
        run.step(loss=losses[-2])
        run.step(loss=Tensor(math.nan))
    assert [loss.reads for loss in losses] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    first, second = read_run(tmp_path).metrics
    assert first["loss"] == 5.0
    assert math.isnan(second["loss"])
    assert first["samples"] is None


def test_paceline_stop_is_heard(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    run.step()
    assert not run.should_stop
    write_stop_request(run.path / "stop_request.json", 7, "stop_command", "a test")  # of another attempt
    time.sleep(0.5)
    assert not run.should_stop
    write_stop_request(run.path / "stop_request.json", 1, "stop_command", "a test")
    wait_until(lambda: run.should_stop)
    run.finish()
    found = read_run(tmp_path)
    assert (found.run.state, found.run.reason, found.run.attempts[0].exit_code) == ("stopped", "stop_command", 0)
    assert found.events_of("end")[0]["state"] == "stopped"
    # An old request stops nobody, and one that the loop did not look at has not stopped it.
    run = start_run(tmp_path)
    write_stop_request(run.path / "stop_request.json", 2, "stop_command", "a test")
    wait_until(lambda: run._link.scribe.stop_request is not None)
    run.finish("early_stop")
    assert (read_run(tmp_path).run.state, read_run(tmp_path).run.reason) == ("finished", "early_stop")


def test_it_needs_nothing_but_python(tmp_path: Path) -> None:
    """-S: without site-packages."""
    code = (
        "import sys, paceline; assert not [m for m in sys.modules if m.startswith('paceline.')];"
        "run = paceline.start_run(sys.argv[1], {'a': 1}); run.step(loss=1.0); run.finish()"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-S", "-c", code, str(tmp_path)], check=True, timeout=60, env=environment)
    assert read_run(tmp_path).metrics[0]["loss"] == 1.0
