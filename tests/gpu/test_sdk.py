"""A foreign loop on a GPU: its windows last as long as the device worked, and its memory is the device's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from paceline import start_run
from paceline.telemetry.reader import read_run

pytestmark = pytest.mark.gpu


def test_windows_end_when_the_device_has_done_its_work(tmp_path: Path) -> None:
    """The host runs ahead of the device; reading the loss at the end of a window waits for it."""
    torch.manual_seed(0)
    matrix = torch.randn(4096, 4096, device="cuda")
    weights = torch.randn(4096, 4096, device="cuda", requires_grad=True)

    def step() -> torch.Tensor:
        return (matrix @ weights).square().mean()

    for _ in range(5):
        step().backward()
    torch.cuda.synchronize()
    with start_run(tmp_path, log_every=10) as run:
        run.step(loss=step())
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(39):
            loss = step()
            loss.backward()
            run.step(loss=loss, samples=8)
        torch.cuda.synchronize()
        spent_ms = (time.perf_counter() - began) * 1e3
    rows = read_run(tmp_path).metrics
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    timed = sum(row["step_ms"] * (row["window_steps"] - (row is rows[0])) for row in rows)
    assert timed == pytest.approx(spent_ms, rel=0.1)
    assert all(row["samples_per_s"] == pytest.approx(8e3 / row["step_ms"]) for row in rows)
    assert 0.1 < rows[-1]["memory_gib"] <= torch.cuda.max_memory_allocated() / 2**30
    assert read_run(tmp_path).environment()["gpus"], "nvidia-smi names them"
