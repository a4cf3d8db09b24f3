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


def test_saves_that_overlap_share_what_they_cost() -> None:
    # Steps of 100 ms; the save of step 10 is on the disk when that of step 20 has begun, the one of step 30 is alone.
    intervals = [0.1] * 9 + [0.15] + [0.12] * 9 + [0.17] + [0.1] * 9 + [0.16] + [0.1] * 10
    quiet, stalls = find_stalls(began(intervals), [save(10, 1.2), save(20, 0.05), save(30, 0.05)])
    assert quiet == pytest.approx([100.0] * (4 + 8 + 9))
    assert [(stall.step, round(stall.stall_ms, 6)) for stall in stalls] == [(10, 150), (20, 150), (30, 60)]


def test_without_a_step_between_saves_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(PacelineError, match="no step without a save"):
        find_stalls(began([0.1] * 12), [save(step, 0.5) for step in (5, 7, 9, 11)])


def test_a_real_run_is_measured() -> None:
    summary = measure(parameters=1e6, tokens=8, saves=2, save_every=30).summary()
    assert summary["saves"] == 2
    assert summary["parameters"] > 1e6
    assert summary["gigabytes"] == pytest.approx(12 * summary["parameters"] / 1e9, rel=0.02)
    assert summary["step_ms"] > 0
    assert summary["blocked_ms"] > 0
