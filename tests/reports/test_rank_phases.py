"""Who holds the others up, from the times of all ranks."""

from __future__ import annotations

from paceline.reports.rank_phases import _means, judge


def times(*waits: float | None) -> dict[int, dict[str, float]]:
    return {rank: {"step_ms": 100.0} | ({} if wait is None else {"wait_ms": wait}) for rank, wait in enumerate(waits)}


def test_the_slow_rank_waits_least() -> None:
    said = judge(times(30.0, 2.0, 34.0))
    assert said.startswith(
        "Imbalanced: rank 1 waits 2.0 ms in a step, the others 32.0 ms: it is 30.0 ms behind, 30.0% of"
    )


def test_ranks_that_are_alike() -> None:
    assert judge(times(5.0, 6.0)).startswith("Balanced")


def test_waits_that_nobody_measured() -> None:
    assert "is not known" in judge(times(5.0, None))


def test_means_weigh_windows_by_their_steps() -> None:
    rows = [{"window_steps": 10, "step_ms": 1.0, "wait_ms": None}, {"window_steps": 30, "step_ms": 5.0, "wait_ms": 2.0}]
    assert _means(rows) == {"step_ms": 4.0, "wait_ms": 2.0}
