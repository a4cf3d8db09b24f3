"""One cell of the fault matrix for real: the injector strikes in `paceline train`, and what was noticed is scored."""

from __future__ import annotations

from pathlib import Path

from paceline.bench.faults.cell import Cell
from paceline.bench.faults.running import run_cell
from paceline.bench.faults.score import score


def test_a_stopped_rank(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cell = Cell("sigstop", number=1, seed=3, nproc=2, rank=1, step=8, delay_s=0.01)
    record = run_cell(cell, tmp_path / "cell")
    got = score(record)
    assert got.is_right, (got, record["tail"])
    assert got.by == "incident"
    assert record["left"] == []
    assert record["injected"]["step"] >= 8
