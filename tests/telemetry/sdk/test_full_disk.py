"""A disk or a memory without room costs a foreign loop its record, not its training."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from paceline import start_run
from paceline.files import LineWriter
from paceline.telemetry import run_file
from paceline.telemetry.reader import read_run
from paceline.telemetry.sdk import scribe
from tests.telemetry.sdk.loops import CONFIG, PATIENCE_S, train, wait_until


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("retry_s", [0.0, 3600.0])
def test_a_full_disk_costs_the_record_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, retry_s: float
) -> None:
    writers, failures = set(), []

    def write(self: LineWriter, line: str) -> None:
        writers.add(threading.current_thread().name)
        try:
            plain_write(self, line)
        except OSError:
            failures.append(line)
            raise

    plain_write = LineWriter.write
    monkeypatch.setattr(LineWriter, "write", write)
    monkeypatch.setattr(scribe, "_RETRY_S", retry_s)
    start_run(tmp_path).finish()
    metrics = tmp_path / "metrics.csv"
    metrics.symlink_to("/dev/full")
    run = start_run(tmp_path, log_every=1)
    for _ in range(2):
        run.step(loss=1.0)
    # An empty queue is not enough: the last job may still be under way.
    num_tried = 2 if retry_s == 0 else 1
    wait_until(lambda: run._link.scribe._jobs.empty() and "is full" in caplog.text and len(failures) >= num_tried)
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
    def full(path: Path, text: str, room: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(run_file, "write_text", full)
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
