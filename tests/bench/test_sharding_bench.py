from __future__ import annotations

import pytest
import torch

from paceline.bench.ranks import find_cause
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


def test_a_failed_run_is_told_by_the_error_of_its_first_rank() -> None:
    stderr = """W1115 12:00:00 torch/distributed/run.py] ****
[rank1]: Traceback (most recent call last):
[rank1]:   File "x.py", line 1, in <module>
[rank1]: AttributeError: 'list' object has no attribute 'values'
[rank0]: RuntimeError: the other one is gone
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""
    assert find_cause(stderr) == "[rank1]: AttributeError: 'list' object has no attribute 'values'"
    assert find_cause("Segmentation fault\n") == "Segmentation fault"
    assert find_cause("") == "it said nothing"


@pytest.mark.slow
def test_real_runs_are_measured() -> None:
    rows = {row["stage"]: row for row in measure(parameters=2e6, nproc=2)}
    whole = rows[0]
    assert whole["weights_mib"] == pytest.approx(4 * whole["parameters"] / 2**20, rel=0.01)
    assert whole["moments_mib"] == pytest.approx(2 * whole["weights_mib"], rel=0.01)
    assert rows[1]["moments_mib"] == pytest.approx(whole["moments_mib"] / 2, rel=0.01)
    assert rows[1]["weights_mib"] == pytest.approx(whole["weights_mib"], rel=0.01)
    for stage in (2, 3):
        assert rows[stage]["total_mib"] == pytest.approx(whole["total_mib"] / 2, rel=0.01)
        assert rows[stage]["stall_ms"] > 0
