"""A ledger line says which samples, in which micro-step, with which loss; losses come back as the same float."""

from __future__ import annotations

from pathlib import Path

from paceline.files import read_records
from paceline.telemetry.ledger import Ledger


def test_a_line_comes_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger" / "rank_00001.jsonl", attempt=2)
    ledger.write(step=3, micro_step=1, epoch=0, ids=(17, 4), loss_sum=0.1 + 0.2, weight=31.0)
    ledger.write(step=4, micro_step=0, epoch=0, ids=(), loss_sum=0.0, weight=0.0)
    ledger.close()
    assert read_records(tmp_path / "ledger" / "rank_00001.jsonl") == [
        {"attempt": 2, "step": 3, "micro_step": 1, "epoch": 0, "ids": [17, 4], "loss_sum": 0.1 + 0.2, "weight": 31.0},
        {"attempt": 2, "step": 4, "micro_step": 0, "epoch": 0, "ids": [], "loss_sum": 0.0, "weight": 0.0},
    ]
