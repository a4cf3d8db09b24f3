"""Ends of trials that say nothing about their cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sweep.accident import is_disk_full, may_be_memory
from paceline.sweep.measured import Measured
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout


@pytest.mark.parametrize(
    ("error", "what", "is_full"),
    [
        ("StorageError", "the disk is full", True),
        ("StorageError", "cannot write (Input/output error)", False),
        ("RankLostError", "the disk is full", False),
    ],
)
def test_a_disk_that_was_full_when_the_trial_failed(tmp_path: Path, error: str, what: str, is_full: bool) -> None:
    assert not is_disk_full(tmp_path, tmp_path)
    events = EventLog(RunLayout(tmp_path).events, "rank 0", 1)
    events.write("failure", error=error, problems=[{"what": what}], secondary=False, rank=0)
    events.close()
    assert is_disk_full(tmp_path, tmp_path) == is_full


def test_memory_is_suspected_where_a_rank_was_killed_while_the_kernel_killed() -> None:
    killed = Measured("failed", "rank 0 was killed by signal 9")
    assert may_be_memory(killed, saw_memory_killer=True)
    assert not may_be_memory(killed, saw_memory_killer=False)
    assert not may_be_memory(Measured("failed", "exit code 1"), saw_memory_killer=True)
    assert not may_be_memory(Measured("timeout", "signal 9"), saw_memory_killer=True)
