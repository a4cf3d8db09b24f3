"""Stages of sharding on an NVIDIA GPU: two ranks on one (gloo), or on two (NCCL): the losses of DDP, and exact resumes."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.bench.sharding import measure
from paceline.telemetry.checkpoints import find_checkpoint
from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

COMMON = (
    "precision.mode=fp32",
    "precision.tf32=false",
    "run.deterministic=true",
    "model.blocks=2",
    "train.micro_batch=7",
    "train.clip_norm=0.5",
    "train.schedule.kind=constant",  # a run that is extended keeps the schedule of its first length
    "evaluate.every_steps=10",
    "evaluate.block=16",
    "checkpoint.every_steps=10",
)


def train(root: Path, nproc: int, *overrides: str) -> Run:
    given = {text.partition("=")[0] for text in overrides}
    common = [text for text in COMMON if text.partition("=")[0] not in given]
    command = [sys.executable, "-m", "paceline", "train", "sasrec", *tiny(*common, *overrides)]
    done = subprocess.run(
        [*command, "--nproc", str(nproc), "--out", str(root)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_run(root)


def curve(run: Run) -> list[tuple[float, float]]:
    return [(row["loss"], row["grad_norm"]) for row in run.metrics]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("plain") / "run", 2, "train.max_steps=50")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_losses_are_ddps_and_a_run_goes_on_bit_for_bit(plain: Run, tmp_path: Path, stage: int) -> None:
    sharded = f"parallel.zero_stage={stage}"
    run = train(tmp_path / "whole", 2, "train.max_steps=50", sharded)
    for (loss, norm), (expected, expected_norm) in zip(curve(run), curve(plain), strict=True):
        assert math.isclose(loss, expected, rel_tol=1e-5)
        assert math.isclose(norm, expected_norm, rel_tol=1e-3)
    train(tmp_path / "cut", 2, "train.max_steps=23", sharded)
    cut = train(tmp_path / "cut", 2, "train.max_steps=50", sharded)
    assert curve(cut) == curve(run)
    files = [
        find_checkpoint(tmp_path / name, "final").manifest.files["shard-00000.safetensors"] for name in ("cut", "whole")
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_half_precision_and_small_gradients_train(tmp_path: Path, mode: str) -> None:
    settings = (f"precision.mode={mode}", "parallel.zero_stage=3", "parallel.compression=bf16", "train.max_steps=30")
    run = train(tmp_path / "run", 2, *settings)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


def test_a_higher_stage_leaves_less_on_a_gpu() -> None:
    rows = {row["stage"]: row for row in measure(3e8, 2)}
    for row in rows.values():
        print(row)
    assert rows[1]["moments_mib"] < 0.6 * rows[0]["moments_mib"]
    assert rows[2]["total_mib"] < 0.55 * rows[0]["total_mib"]
    assert rows[3]["peak_mib"] < rows[2]["peak_mib"] < rows[1]["peak_mib"] < rows[0]["peak_mib"]
    assert torch.cuda.is_available()
