"""What a real run logged is what `paceline evaluate` finds, digit for digit; what it trained is what its export computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paceline.trained import load_model
from paceline.workload import Draw

pytestmark = pytest.mark.timeout(180)


def test_a_run_of_three_ranks_is_reproduced_by_one_process(run_ranks, paceline, tmp_path: Path) -> None:
    options = ("evaluate.every_steps=4", "evaluate.block=16", "checkpoint.every_steps=4", "model.dropout=0.1")
    run = run_ranks(3, "train.max_steps=10", "precision.mode=bf16", *options)
    root = tmp_path / "run"
    logged = {(row["step"], row["split"]) for row in run.validation}
    best = max((row for row in run.validation if row["split"] == "validation"), key=lambda row: row["ndcg_10"])["step"]
    assert {(4, "validation"), (8, "validation"), (10, "validation"), (best, "test")} <= logged
    others = (("step_00000004", {"validation"}),) if best != 4 else ()
    for word, splits in (*others, ("best", {"validation", "test"})):
        code, out, err = paceline("evaluate", str(root), "--checkpoint", word, "--json").finish()
        assert code == 0, err
        record = json.loads(out)
        assert record["precision"] == "bf16"
        assert {row["split"] for row in record["rows"] if row["equal"]} == splits
        assert not [row for row in record["rows"] if row["equal"] is False]
    code, _, err = paceline("export", str(root), "--checkpoint", "final", "--out", str(tmp_path / "out")).finish()
    assert code == 0, err
    exported, trained = load_model(tmp_path / "out"), load_model(root, "final")
    batch = trained.workload.evaluation_set("test").fetch(range(20), Draw(0, 0))
    with torch.no_grad():
        outputs = [each.model.last_hidden(batch) for each in (exported, trained)]
    assert torch.equal(*outputs)


def test_while_the_run_is_training(start_ranks, paceline, tmp_path: Path) -> None:
    options = ("checkpoint.every_steps=5", "checkpoint.keep=1", "stop.max_hours=0.05")
    started = start_ranks(1, "train.max_steps=1000000", *options)
    started.wait_for_step(12)
    commands = [
        paceline("evaluate", str(started.root), "--json"),
        paceline("export", str(started.root), "--out", str(tmp_path / "out")),
    ]
    for code, _, err in (command.finish() for command in commands):
        assert code == 0, err
    stop = paceline("stop", str(started.root))
    assert stop.finish()[0] == 0
    started.wait()
    assert load_model(tmp_path / "out").step % 5 == 0
