from __future__ import annotations

import pytest
import torch

from paceline.bench.sharded import count_bytes
from paceline.bench.sharding import measure, summarize


def test_memory_that_is_shared_counts_once() -> None:
    room = torch.zeros(100)
    assert count_bytes([room[:10], room[50:], torch.zeros(3, dtype=torch.float64)]) == 424


def test_the_fullest_rank_is_told() -> None:
    mib = 2**20
    ranks = [
        {"weights": 4 * mib, "gradients": 4 * mib, "moments": 6 * mib, "peak": 0},
        {"weights": 4 * mib, "gradients": 4 * mib, "moments": 2 * mib, "peak": 0},
    ]
    told = {"device": "a", "backend": "gloo", "parameters": 1, "stage": 1, "step_ms": 1.0, "stall_ms": 2.0}
    row = summarize(told | {"ranks": ranks})
    assert (row["weights_mib"], row["moments_mib"], row["total_mib"], row["peak_mib"]) == (4, 6, 14, None)
    assert row["nproc"] == 2


@pytest.mark.slow
def test_a_real_run_is_measured() -> None:
    whole, sharded = measure(parameters=2e6, nproc=2, stages=(0, 3))
    assert whole["weights_mib"] == pytest.approx(4 * whole["parameters"] / 2**20, rel=0.01)
    assert whole["moments_mib"] == pytest.approx(2 * whole["weights_mib"], rel=0.01)
    assert sharded["total_mib"] == pytest.approx(whole["total_mib"] / 2, rel=0.01)
    assert sharded["stall_ms"] > 0
