"""A foreign loop's run directory: read like a native one, taken by one run alone, never in the way of the training."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline import start_run
from paceline.errors import OccupiedError, UsageError
from paceline.files import LineWriter, read_json
from paceline.launch.results import result_rows
from paceline.telemetry import run_file
from paceline.telemetry.pulse import read_pulse
from paceline.telemetry.reader import read_run
from paceline.telemetry.sdk import scribe
from paceline.telemetry.stop_request import write_stop_request
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS

NATIVE = Path(__file__).parents[2] / "data" / "run-v1"
CONFIG = {"lr": 0.1, "model": {"width": 8}, "epochs": 1}
PATIENCE_S = 30


class Tensor:
    """What the SDK asks of a tensor."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.reads = 0

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:
        self.reads += 1
        return self.value


def train(run, steps: int, **more) -> None:
    for _ in range(steps):
        with run.phase("data"):
            pass
        run.step(loss=1 / (run.last_step + 1), samples=4, **more)


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_directory_reads_like_a_native_one(tmp_path: Path) -> None:
    native = read_run(NATIVE)
    with start_run(tmp_path / "a", CONFIG, name="mine", log_every=4, unit="tokens", total_steps=10) as run:
        train(run, 10, units=7, epoch=2, lr=0.1, grad_norm=Tensor(2.5))
        run.validation({"val/ndcg@10": 0.5}, hr_10=Tensor(0.25), num_samples=40)
        run.event("note", what="a word", time="now")
        pulses = Path(read_json(run.path / "run.json")["attempts"][0]["pulses"])
        pulse = read_pulse(pulses, 0)
        assert pulse is not None
        assert (pulse.step, pulse.phase, pulse.pid, pulse.attempt) == (10, "step", os.getpid(), 1)
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


def test_a_jump_costs_nothing(tmp_path: Path) -> None:
    with start_run(tmp_path, log_every=10) as run:
        run.step(loss=1.0, step=1)
        run.step(loss=1.0, step=20_000_000)
        assert len(run._stopwatch._steps_s) <= 1
        run.step(loss=1.0, step=2**63 - 1)
    rows = [(row["step"], row["window_steps"]) for row in read_run(tmp_path).metrics]
    assert rows == [(20_000_000, 2), (2**63 - 1, 1)]


def test_a_writer_that_does_not_come_to_an_end_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribe, "_CLOSE_S", 0.05)
    run, gate = start_run(tmp_path), threading.Event()
    run._link.scribe.hand(lambda: gate.wait(PATIENCE_S) and None)
    run.step(loss=1.0)
    run.finish()
    assert "not everything about this run is written" in caplog.text
    gate.set()
    run._link.scribe._thread.join(PATIENCE_S)
    assert read_run(tmp_path).metrics[-1]["step"] == 1


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("retry_s", [0.0, 3600.0])
def test_a_full_disk_costs_the_record_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, retry_s: float
) -> None:
    writers = set()

    def write(self: LineWriter, line: str) -> None:
        writers.add(threading.current_thread().name)
        plain_write(self, line)

    plain_write = LineWriter.write
    monkeypatch.setattr(LineWriter, "write", write)
    monkeypatch.setattr(scribe, "_RETRY_S", retry_s)
    start_run(tmp_path).finish()
    metrics = tmp_path / "metrics.csv"
    metrics.symlink_to("/dev/full")
    run = start_run(tmp_path, log_every=1)
    for _ in range(2):
        run.step(loss=1.0)
    wait_until(lambda: run._link.scribe._jobs.empty() and "is full" in caplog.text)
    metrics.unlink()
    run._link.rows._metrics = None
    run.step(loss=2.0)
    wait_until(run._link.scribe._jobs.empty)
    run.finish()
    assert "paceline-sdk" in writers
    assert threading.current_thread().name not in writers, "the loop never waits for the disk"
    assert [record.getMessage() for record in caplog.records if "is full" in record.getMessage()] == [
        f"cannot write about this run: the disk is full ({metrics}); the training goes on, and so does trying"
    ]
    found = read_run(tmp_path)
    assert [row["loss"] for row in found.metrics] == ([2.0] if retry_s == 0 else [])
    assert "records about this run are missing" in found.events_of("warning")[0]["what"]
    assert len(found.events_of("end", attempt=2)) == 1, "the end is tried again, however short the pause was"
    assert found.run.state == "finished"


def test_no_room_at_the_start_is_no_reason_not_to_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(run_file, "write_json", full)
        with start_run(tmp_path / "a", CONFIG) as run:
            train(run, 20)
            run.validation(accuracy=0.5)
            run.event("note", what="x")
            assert not run.should_stop
            assert run.attempt is None
    assert len(caplog.records) == 1
    assert "nothing is written about this run: the disk is full" in caplog.text
    with start_run(tmp_path / "a", CONFIG) as run:  # nothing is left that would be in the way
        assert run.attempt == 1


def test_a_run_whose_pulse_has_no_room_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with start_run(tmp_path) as run:
        run.step(loss=1.0)
    assert read_run(tmp_path).beats(0)[-1]["step"] == 1


def test_it_needs_nothing_but_python(tmp_path: Path) -> None:
    """-S: without site-packages."""
    code = (
        "import sys, paceline; assert not [m for m in sys.modules if m.startswith('paceline.')];"
        "run = paceline.start_run(sys.argv[1], {'a': 1}); run.step(loss=1.0); run.finish()"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-S", "-c", code, str(tmp_path)], check=True, timeout=60, env=environment)
    assert read_run(tmp_path).metrics[0]["loss"] == 1.0
