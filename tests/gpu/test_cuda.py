"""On one NVIDIA GPU: NCCL with one rank, gloo with two ranks on it, bf16 and fp16, the fused optimizer, a skipped step."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def train(root: Path, nproc: int, *overrides: str) -> Run:
    command = [sys.executable, "-m", "paceline", "train", "sasrec", *tiny("train.max_steps=30", *overrides)]
    done = subprocess.run(
        [*command, "--nproc", str(nproc), "--out", str(root)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_run(root)


def effective(run: Run) -> dict[str, object]:
    return {event["about"]: event["effective"] for event in run.events_of("choice")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """fp32 on the CPU of the same machine."""
    return train(tmp_path_factory.mktemp("cpu"), 1, "launch.gpus=[]")


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics]


def assert_close(run: Run, reference: Run, tolerance: float) -> None:
    for ours, theirs in zip(losses(run), losses(reference), strict=True):
        assert math.isclose(ours, theirs, rel_tol=tolerance), (ours, theirs)


def test_nccl_with_one_rank_in_bf16_with_the_fused_optimizer(tmp_path, reference):
    run = train(tmp_path / "run", 1, "parallel.backend=nccl", "evaluate.every_steps=15")
    choices = effective(run)
    assert choices["parallel.backend"] == "nccl"
    assert choices["strategy"] == "ddp"
    assert choices["precision.mode"] == "bf16"
    assert choices["train.optimizer.fused"] is True
    assert choices["device"] == "cuda:0"
    assert_close(run, reference, 0.02)
    row = run.metrics[-1]
    assert row["step_ms"] > 0
    assert row["memory_gib"] > 0
    assert row["gpu_util"] is not None
    assert row["mfu"] is not None
    assert run.beats(0)[-1]["gpu"]["power_w"] > 0
    assert run.environment()["gpus"][0]["uuid"].startswith("GPU-")


def test_gloo_with_two_ranks_on_one_gpu(tmp_path, reference):
    run = train(
        tmp_path / "run",
        2,
        "parallel.backend=gloo",
        "precision.mode=fp32",
        "precision.tf32=false",
        "train.micro_batch=7",
    )
    assert effective(run)["parallel.backend"] == "gloo"
    assert {beat["rank"] for rank in (0, 1) for beat in run.beats(rank)} == {0, 1}
    assert_close(run, reference, 1e-4)


def test_compressed_gradients_of_two_ranks_on_one_gpu(tmp_path, reference):
    options = (
        "parallel.backend=gloo",
        "parallel.compression=bf16",
        "parallel.bucket_mb=0.01",
        "data.placement=host",
        "data.num_workers=1",
    )
    run = train(tmp_path / "run", 2, *options)
    assert effective(run)["parallel.compression"] == "bf16"
    assert_close(run, reference, 0.03)


def test_without_asking_one_rank_needs_no_group(tmp_path, reference):
    run = train(tmp_path / "run", 1)
    assert effective(run)["strategy"] == "single"
    assert_close(run, reference, 0.02)


def test_fp16_with_its_scaler(tmp_path, reference):
    run = train(tmp_path / "run", 1, "precision.mode=fp16")
    assert effective(run)["precision.mode"] == "fp16"
    finite = [loss for loss in losses(run) if math.isfinite(loss)]
    assert len(finite) == 30, "an overflow of the gradients leaves the loss finite"
    assert finite[-1] < finite[0]


def test_deterministic_runs_repeat_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)  # a run sets it for itself
    first, again = (train(tmp_path / name, 1, "run.deterministic=true", "model.dropout=0.1") for name in "ab")
    assert losses(first) == losses(again)
