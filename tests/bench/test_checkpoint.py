from __future__ import annotations

import itertools

import pytest

from paceline.bench.checkpoint import find_stalls, measure
from paceline.errors import PacelineError


def began(intervals: list[float]) -> list[float]:
    return [0.0, *itertools.accumulate(intervals)]


def save(step: int, seconds: float) -> dict:
    return {"step": step, "seconds": seconds, "stall_ms": 1.0, "bytes": 10}


def test_a_stall_is_what_the_steps_lose_until_the_files_are_on_the_disk() -> None:
    # Steps of 100 ms; step 10 holds the save (150 ms), the two after it run beside the writing (120 ms each).
    intervals = [0.1] * 9 + [0.15, 0.12, 0.12] + [0.1] * 8
    quiet, (stall,) = find_stalls(began(intervals), [save(10, 0.23)])
    assert quiet == pytest.approx([100.0] * 12)  # the first five are warm-up
    assert stall.stall_ms == pytest.approx(50 + 20 + 20)


def test_saves_that_overlap_cannot_be_told_apart() -> None:
    with pytest.raises(PacelineError, match="still being written"):
        find_stalls(began([0.1] * 40), [save(10, 2.0), save(20, 0.1)])


def test_a_real_run_is_measured() -> None:
    summary = measure(parameters=1e6, tokens=8, saves=1, save_every=30).summary()
    assert summary["saves"] == 1  # two could overlap on a slow machine
    assert summary["parameters"] > 1e6
    assert summary["gigabytes"] == pytest.approx(12 * summary["parameters"] / 1e9, rel=0.02)
    assert summary["step_ms"] > 0
    assert summary["blocked_ms"] > 0
