from __future__ import annotations

import pytest

from paceline.bench.scaling import Timed, count_runs, measure, summarize


def timed(repeat: int, kind: str, ranks: int, step_ms: float) -> Timed:
    return Timed(repeat, kind, ranks, 8, step_ms, "CPU")


def test_efficiency_is_taken_within_a_repeat():
    """The second repeat met a machine at half its speed."""
    measured = [
        timed(0, "weak", 1, 10),
        timed(0, "weak", 4, 12.5),
        timed(0, "strong", 4, 5),
        timed(1, "weak", 1, 20),
        timed(1, "weak", 4, 25),
        timed(1, "strong", 4, 10),
    ]
    alone, weak, strong = summarize(measured)
    assert (alone["kind"], alone["efficiency"]) == ("alone", 1)
    assert (weak["ranks"], weak["efficiency"], weak["efficiency_lowest"], weak["efficiency_highest"]) == (
        4,
        0.8,
        0.8,
        0.8,
    )
    assert (strong["efficiency"], strong["step_ms"], strong["repeats"]) == (0.5, 7.5, 2)


def test_one_rank_is_always_measured():
    assert count_runs([2, 4], 3) == 3 * 5
    assert count_runs([1], 2) == 2


@pytest.mark.slow
def test_real_ranks():
    rows = list(measure([2], repeats=1, tokens=9, steps=5))
    assert [(row.kind, row.ranks, row.tokens) for row in rows] == [("weak", 1, 9), ("weak", 2, 9), ("strong", 2, 5)]
    assert all(row.step_ms > 0 for row in rows)
