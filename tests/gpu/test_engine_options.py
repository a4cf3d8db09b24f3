"""torch.compile, recomputed blocks, the moving average and PowerSGD on an NVIDIA GPU, with and without CUDA graphs."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.engine.recomputation import recompute_blocks
from paceline.telemetry.checkpoints import find_checkpoint
from paceline.telemetry.events import QuietLog
from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

CONSTANT = "train.schedule.kind=constant"
"""A run that is extended keeps the schedule of its first length."""


def train(root: Path, *overrides: str, nproc: int = 1, code: int = 0) -> Run:
    command = [sys.executable, "-m", "paceline", "train", "sasrec", *tiny(*overrides), "--nproc", str(nproc)]
    done = subprocess.run([*command, "--out", str(root)], capture_output=True, text=True, timeout=500)
    assert done.returncode == code, done.stdout + done.stderr
    return read_run(root)


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics]


def effective(run: Run) -> dict[str, object]:
    return {event["about"]: event["effective"] for event in run.events_of("choice")}


def test_compiled_losses_are_the_same_and_no_graph_keeps_their_dropout(tmp_path):
    steps = ("train.max_steps=30", "precision.mode=fp32", "precision.tf32=false", "evaluate.every_steps=15")
    plain = train(tmp_path / "plain", *steps)
    run = train(tmp_path / "compiled", *steps, "train.compile.enabled=true")
    choices = effective(run)
    assert (choices["train.compile.enabled"], choices["train.compile.dynamic"]) == (True, False)
    assert choices["train.graph"] is False
    assert run.events_of("compile")[0]["step"] == 0
    assert not [event for event in run.events_of("warning") if event["source"] != "launcher"]
    for ours, theirs in zip(losses(run), losses(plain), strict=True):
        assert math.isclose(ours, theirs, rel_tol=1e-3), (ours, theirs)


def test_a_compiled_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    common = ("run.deterministic=true", "model.dropout=0.2", "train.compile.enabled=true", CONSTANT)
    whole = train(tmp_path / "whole", *common, "train.max_steps=40")
    train(tmp_path / "parts", *common, "train.max_steps=17")
    parts = train(tmp_path / "parts", *common, "train.max_steps=40")
    assert effective(whole)["train.compile.enabled"] is True
    assert losses(parts) == losses(whole)
    files = [find_checkpoint(tmp_path / name, "final").manifest.files for name in ("whole", "parts")]
    assert files[0]["shard-00000.safetensors"] == files[1]["shard-00000.safetensors"]


def test_compiled_under_nccl(tmp_path):
    run = train(tmp_path / "run", "train.max_steps=20", "parallel.backend=nccl", "train.compile.enabled=true")
    assert effective(run)["strategy"] == "ddp"
    assert effective(run)["train.compile.enabled"] is True
    assert losses(run)[-1] < losses(run)[0]


def test_recomputed_blocks_give_the_same_bits_and_need_less_memory(tmp_path):
    steps = ("train.max_steps=20", "run.deterministic=true", "model.dropout=0.2", "model.blocks=3", "train.graph=false")
    plain = train(tmp_path / "plain", *steps)
    run = train(tmp_path / "again", *steps, "train.activation_checkpointing=true")
    assert losses(run) == losses(plain)

    def peak(*, recomputed: bool) -> int:
        torch.manual_seed(0)
        layers = [torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, device="cuda") for _ in range(6)]
        model = torch.nn.Module()
        model.layers = torch.nn.ModuleList(layers)
        if recomputed:
            recompute_blocks(model, QuietLog())
        state = torch.randn(32, 256, 256, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        for layer in model.layers:
            state = layer(state)
        state.sum().backward()
        return torch.cuda.max_memory_allocated()

    kept, needed = peak(recomputed=False), peak(recomputed=True)
    print(f"peak memory of 6 layers: {kept / 2**20:.0f} MiB kept, {needed / 2**20:.0f} MiB recomputed")
    assert needed < 0.6 * kept


def test_an_average_beside_a_graph(tmp_path):
    """Evaluations look at the average; the graph goes on reading the weights, where they were recorded."""
    steps = ("train.max_steps=40", "run.deterministic=true", "model.dropout=0.2", CONSTANT)
    plain = train(tmp_path / "plain", *steps)
    run = train(tmp_path / "run", *steps, "train.optimizer.ema=0.9", "evaluate.every_steps=5")
    assert effective(run)["train.graph"] is True
    assert losses(run) == losses(plain)
    train(tmp_path / "parts", "train.max_steps=23", *steps[1:], "train.optimizer.ema=0.9", "evaluate.every_steps=5")
    train(tmp_path / "parts", *steps, "train.optimizer.ema=0.9", "evaluate.every_steps=5")
    files = [find_checkpoint(tmp_path / name, "final").manifest.files for name in ("run", "parts")]
    assert files[0]["shard-00000.safetensors"] == files[1]["shard-00000.safetensors"]


def test_powersgd_with_several_buckets_on_nccl(tmp_path):
    options = ("parallel.backend=nccl", "parallel.compression=powersgd", "parallel.powersgd.start_step=5")
    run = train(tmp_path / "run", "train.max_steps=40", "parallel.bucket_mb=0.004", *options)
    assert losses(run)[-1] < losses(run)[0]
    assert all(math.isfinite(loss) for loss in losses(run))
