"""On one NVIDIA GPU: what a run logged is what `paceline evaluate` finds there, and an export computes the same on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.trained import load_model
from paceline.workload import Draw
from tests.integration.conftest import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def paceline(*arguments: str) -> str:
    command = [sys.executable, "-m", "paceline", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_logged_numbers_and_exported_outputs_on_a_gpu(tmp_path: Path) -> None:
    root, out = str(tmp_path / "run"), str(tmp_path / "out")
    options = ("train.max_steps=30", "evaluate.every_steps=15", "run.deterministic=true")
    paceline("train", "sasrec", *tiny(*options), "--nproc", "1", "--out", root)
    record = json.loads(paceline("evaluate", root, "--checkpoint", "best", "--json"))
    assert (record["device"], record["precision"]) == ("cuda", "bf16")
    assert [row["equal"] for row in record["rows"]] == [True] * len(record["rows"])
    paceline("export", root, "--checkpoint", "final", "--out", out)
    outputs = []
    for path in (root, out):
        trained = load_model(path, "final", device="cuda")
        batch = trained.workload.evaluation_set("test").fetch(range(9), Draw(0, 0))
        with torch.no_grad():
            outputs.append(trained.model.last_hidden({name: value.cuda() for name, value in batch.items()}))
    assert outputs[0].is_cuda
    assert torch.equal(*outputs)
