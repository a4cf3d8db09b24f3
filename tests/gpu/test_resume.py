"""Guarantee 4 on an NVIDIA GPU: killed and started again in deterministic mode, the same losses and weights, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.telemetry.checkpoints import check_files, find_checkpoint
from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import find_ranks, tiny, wait_for_step

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

HARD = (
    "run.deterministic=true",
    "model.dropout=0.2",
    "model.blocks=2",
    "parallel.bucket_mb=0.004",
    "train.micro_batch=9",
    "data.placement=host",
    "data.num_workers=1",
    "train.max_steps=400",
    "checkpoint.every_steps=20",
    "evaluate.every_epochs=20",
)


def command(root: Path, nproc: int, *overrides: str) -> list[str]:
    given = {text.partition("=")[0] for text in overrides}
    hard = [text for text in HARD if text.partition("=")[0] not in given]
    options = [*tiny(*hard, *overrides), "--nproc", str(nproc), "--out", str(root)]
    return [sys.executable, "-m", "paceline", "train", "sasrec", *options]


def train(root: Path, nproc: int, *overrides: str) -> Run:
    done = subprocess.run(command(root, nproc, *overrides), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_run(root)


def kill_a_rank(root: Path, step: int, nproc: int, *overrides: str) -> None:
    with subprocess.Popen(
        command(root, nproc, *overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_for_step(root, step, timeout_s=120)
        find_ranks(process.pid)[nproc - 1].kill()
        assert process.wait(timeout=120) == 4


def curve(run: Run) -> list[str]:
    """As texts: a step that fp16 left out has a norm that is not a number, and equal all the same."""
    return [f"{row['step']} {row['loss']!r} {row['grad_norm']!r}" for row in run.metrics]


@pytest.mark.parametrize(
    ("nproc", "overrides"),
    [
        (1, ("parallel.backend=nccl", "precision.mode=bf16")),
        (2, ("parallel.backend=gloo", "precision.mode=fp16")),
        (2, ("parallel.backend=gloo", "precision.mode=fp32", "parallel.compression=bf16")),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, nproc: int, overrides: tuple[str, ...]) -> None:
    reference = train(tmp_path / "reference", nproc, *overrides)
    root = tmp_path / "run"
    kill_a_rank(root, 130, nproc, *overrides)
    run = train(root, nproc, *overrides)
    starts = [event["start_step"] for event in run.events_of("plan")]
    assert starts[0] == 0
    assert starts[1] >= 20
    assert curve(run) == curve(reference)
    assert [r["ndcg_10"] for r in run.validation] == [r["ndcg_10"] for r in reference.validation]
    final = find_checkpoint(root, "final")
    check_files(final)
    assert final.manifest.files == find_checkpoint(tmp_path / "reference", "final").manifest.files
