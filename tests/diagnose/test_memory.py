"""Memory that grows while one looks, by rank."""

from __future__ import annotations

import random

from paceline.diagnose.finding import Finding
from paceline.diagnose.memory import MemoryWatch, fit_growth
from tests.diagnose.sights import Made


def watch(seconds: int, leaks: dict[int, float], seed: int = 5) -> tuple[list[Finding], float | None]:
    """Ranks of 2 GiB with noise; `leaks`: GiB a second. What was found first, and when."""
    dice, run, memory = random.Random(seed), Made(3), MemoryWatch()
    for step in range(seconds * 4):
        run.everybody(step, "forward")
        run.wait()
        for rank in range(3):
            used = 2 + leaks.get(rank, 0.0) * run.now + dice.gauss(0, 0.005)
            run.become(rank, "running", memory_gib=used)
        found = memory.see(run.sight())
        if found:
            return found, run.now
    return [], None


def test_a_leak_is_found_with_its_rank_and_slope() -> None:
    (found,), after = watch(60, {1: 0.03})
    assert (found.kind, found.rank) == ("memory_growth", 1)
    assert 90 < found.numbers["gib_per_hour"] < 130
    assert after is not None
    assert 15 <= after <= 40


def test_memory_that_only_wavers_is_no_leak() -> None:
    assert watch(300, {}) == ([], None)


def test_what_is_growth_and_what_is_not() -> None:
    times = list(range(60))
    assert fit_growth(times, [2 + 0.02 * t for t in times]) is not None
    assert fit_growth(times, [2 + min(t, 20) * 0.05 for t in times]) is None  # it levels off
    assert fit_growth(times, [2 + (t % 10) * 0.1 for t in times]) is None  # a sawtooth
    assert fit_growth(times, [2 + (1 if t > 30 else 0) for t in times]) is None  # one jump
    assert fit_growth(times[:5], [1.0, 2.0, 3.0, 4.0, 5.0]) is None
