"""Heartbeats: one at the start, one at the end, some between; a full disk is kept for the training thread."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.files import read_records
from paceline.telemetry.heartbeat import Heartbeat
from paceline.telemetry.layout import SCHEMA

PATIENCE_S = 30


def test_the_first_and_the_last_beat_are_always_written(tmp_path: Path) -> None:
    state = {"step": 0}
    first = threading.Event()

    def collect() -> dict[str, Any]:
        beat = dict(state)
        first.set()
        return beat

    heartbeat = Heartbeat(tmp_path / "heartbeat" / "a.jsonl", 3, 2, interval_s=3600, collect=collect)
    heartbeat.start()
    assert first.wait(PATIENCE_S)
    state["step"] = 99
    heartbeat.stop()
    beats = read_records(tmp_path / "heartbeat" / "a.jsonl")
    assert [beat["step"] for beat in beats] == [0, 99]
    assert all((b["v"], b["rank"], b["attempt"], b["pid"]) == (SCHEMA, 3, 2, os.getpid()) for b in beats)
    assert heartbeat.error is None


def test_beats_come_again_and_again(tmp_path: Path) -> None:
    enough = threading.Event()
    count = 0

    def collect() -> dict[str, Any]:
        nonlocal count
        count += 1
        if count == 5:
            enough.set()
        return {"count": count}

    heartbeat = Heartbeat(tmp_path / "a.jsonl", 0, 1, interval_s=0.001, collect=collect)
    heartbeat.start()
    assert enough.wait(PATIENCE_S)
    heartbeat.stop()
    beats = read_records(tmp_path / "a.jsonl")
    assert [beat["count"] for beat in beats] == list(range(1, count + 1))
    times = [beat["time"] for beat in beats]
    assert times == sorted(times)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_kept_for_the_training_thread(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    heartbeat = Heartbeat(tmp_path / "a.jsonl", 0, 1, interval_s=0.001, collect=dict)
    heartbeat.start()
    heartbeat._thread.join(PATIENCE_S)
    assert heartbeat.error is not None
    assert heartbeat.error.errno == errno.ENOSPC
    heartbeat.stop()


def test_stopping_one_that_never_started_is_harmless(tmp_path: Path) -> None:
    Heartbeat(tmp_path / "a.jsonl", 0, 1, interval_s=1, collect=dict).stop()
    assert read_records(tmp_path / "a.jsonl") == []
