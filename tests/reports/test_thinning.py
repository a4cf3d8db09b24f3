from __future__ import annotations

import math
import random

from paceline.reports.thinning import split_columns, thin

NAN = math.nan


def test_a_short_curve_stays_as_it_is() -> None:
    thinned = thin([1, 2, 3], [3.0, 1.0, 2.0], columns=10)
    assert thinned.pieces == [[(1, 3.0), (2, 1.0), (3, 2.0)]]
    assert (thinned.means, thinned.lost) == ([], [])


def test_a_long_one_keeps_every_spike_and_its_mean() -> None:
    drawn = random.Random(1)
    x = list(range(1, 50_001))
    y: list[float | None] = [drawn.gauss(0, 1) for _ in x]
    y[31_234], y[40_000] = 90.0, -70.0
    thinned = thin(x, y, columns=100)
    assert 150 < len(thinned.points) <= 200
    assert {(31_235, 90.0), (40_001, -70.0)} <= set(thinned.points)
    assert [x for x, _ in thinned.points] == sorted(x for x, _ in thinned.points)
    assert set(thinned.points) <= set(zip(x, y, strict=True))
    (means,) = thinned.means
    assert len(means) == 100
    assert all(abs(value) < 0.5 for _, value in means)  # five standard errors; the spike moves its column by 0.18


def test_what_is_unknown_is_a_gap_and_what_is_not_finite_is_told_apart() -> None:
    thinned = thin([1, 2, 3, 4, 5, 6], [1.0, None, 2.0, NAN, math.inf, 3.0], columns=10)
    assert thinned.pieces == [[(1, 1.0)], [(3, 2.0)], [(6, 3.0)]]
    assert thinned.lost == [4, 5]


def test_one_bad_value_does_not_break_a_long_curve() -> None:
    y: list[float | None] = [1.0] * 1000
    y[500] = NAN
    thinned = thin(range(1000), y, columns=10)
    assert len(thinned.pieces) == 1
    assert thinned.lost == [500]


def test_nothing_finite() -> None:
    thinned = thin([1, 2], [NAN, NAN], columns=10)
    assert (thinned.points, thinned.lost) == ([], [1, 2])
    assert thin([], [], columns=10).points == []


def test_columns_hold_every_index_once() -> None:
    for x in (range(1000), [0] * 500 + [1000] * 500, [7] * 100, [0, *range(990, 1090)]):
        columns = split_columns(list(x), 10)
        assert [index for column in columns for index in column] == list(range(len(x)))
        assert len(columns) <= 10
