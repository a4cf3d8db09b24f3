"""Trainings of the sparse language model through the command, by kernels: it learns, and goes on exactly."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.telemetry.checkpoints import find_checkpoint
from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import find_ranks, wait_for_step

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


def test_a_training_of_300_steps_through_the_command(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "paceline",
        "train",
        "nsa-125m",
        "data.source=text",
        "data.path=null",
        "data.length=1024",
    ]
    argv += ["model.layers=4", "model.sparse=always", "attention.fallback=error", "train.global_batch=8"]
    argv += [
        "train.max_steps=300",
        "train.schedule.warmup_steps=20",
        "evaluate.every_steps=100",
        "evaluate.max_samples=32",
    ]
    argv += ["--out", str(tmp_path / "run")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=380, env={**os.environ})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    chosen = {event["about"]: event["effective"] for event in events if event["kind"] == "choice"}
    assert chosen["model.sparse_path"] == "fast", chosen
    assert chosen["attention.selected"] == "fast_path.attend_selected", chosen
    losses = [event["metrics"]["loss"] for event in events if event["kind"] == "evaluation"]
    assert losses[-1] < 0.1 * math.log(258), losses  # every byte alike: 5.55


def test_fp16_learns_as_bf16_does(tmp_path: Path) -> None:
    """A row's losses are a sum of 16,384: where fp16's scale began for a mean, the warm-up went by in overflows, and the loss stayed behind."""
    argv = [sys.executable, "-m", "paceline", "train", "nsa-125m", "data.source=text", "data.path=null"]
    argv += ["data.length=16384", "model.layers=2", "model.sparse=always", "train.compile.enabled=false"]
    argv += ["train.global_batch=1", "train.max_steps=100", "train.schedule.warmup_steps=20", "telemetry.log_every=1"]
    argv += ["evaluate.every_steps=null", "evaluate.max_samples=2", "checkpoint.enabled=false"]
    losses: dict[str, float] = {}
    for mode in ("bf16", "fp16"):
        out = tmp_path / mode
        command = [*argv, f"precision.mode={mode}", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        rows = read_run(out).metrics
        overflows = [row["step"] for row in rows if not math.isfinite(row["grad_norm"])]
        assert len(overflows) <= 3, overflows
        losses[mode] = sum(row["loss"] for row in rows) / len(rows)
    # Measured 2026-11-19 on an H200, means of all steps: five seeds differ by -4.4 to 0.8 % between the two, eight runs of one seed by 0.9 %
    # in one precision; with the scale of a mean fp16 lies 75 to 82 % higher, 12 to 14 steps overflow.
    assert losses["fp16"] == pytest.approx(losses["bf16"], rel=0.1), losses


def test_compiled_replayed_killed_and_resumed_with_the_same_bits(tmp_path: Path) -> None:
    """A graph of a compiled model is recorded anew at every start, and by then the user's cache may hold other tiles."""
    argv = [sys.executable, "-m", "paceline", "train", "nsa-125m", "data.source=synthetic", "data.path=null"]
    argv += ["data.length=4096", "data.samples=64", "model.layers=2", "model.sparse=always", "train.global_batch=2"]
    argv += ["run.deterministic=true", "train.max_steps=200", "train.schedule.warmup_steps=5"]
    argv += ["evaluate.every_steps=200"]
    argv += ["checkpoint.every_steps=10", "telemetry.log_every=1", "--out"]

    def train(root: Path) -> Run:
        done = subprocess.run([*argv, str(root)], capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return read_run(root)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = train(whole)
    with subprocess.Popen([*argv, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for_step(killed, 25, timeout_s=150)
        find_ranks(process.pid)[0].kill()
        assert process.wait(timeout=120) == 4
    run = train(killed)
    graphs = [event["effective"] for event in run.events_of("choice") if event["about"] == "train.graph"]
    assert graphs == [True, True]
    assert run.events_of("plan")[-1]["start_step"] >= 10
    losses, expected = ({row["step"]: row["loss"] for row in each.metrics} for each in (run, reference))
    assert losses.keys() == expected.keys()
    assert [step for step, loss in expected.items() if losses[step] != loss] == [], "steps with another loss"
    files, others = (find_checkpoint(root, "final").manifest.files for root in (killed, whole))
    assert files.keys() == others.keys()
    assert [name for name, entry in others.items() if files[name] != entry] == [], "files with other bytes"
