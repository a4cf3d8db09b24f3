"""One cell of the fault matrix for real: the injector strikes in `paceline train`, and what was noticed is scored."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from paceline.bench.faults.cell import Cell
from paceline.bench.faults.matrix import build_slots
from paceline.bench.faults.score import score
from paceline.bench.faults.watched import WatchedRun


@pytest.mark.slow
def test_a_stopped_rank(tmp_path: Path) -> None:
    cell = Cell("sigstop", number=1, seed=3, nproc=2, rank=1, step=8, delay_s=0.01)
    running = WatchedRun(cell, tmp_path / "cell", build_slots(1, 2, sorted(os.sched_getaffinity(0)))[0])
    try:
        while (record := running.look()) is None:
            time.sleep(0.2)
    finally:
        running.end()
    got = score(record)
    assert got.is_right, (got, record["tail"])
    assert got.by == "incident"
    assert record["left"] == []
    assert record["injected"]["step"] >= 8
    seen = [json.loads(line)["pulses"] for line in (tmp_path / "cell" / "pulses.jsonl").read_text().splitlines()]
    assert {pulse["rank"] for pulse in seen[-1]} == {0, 1}
    assert seen[-1][0]["step"] >= 8
