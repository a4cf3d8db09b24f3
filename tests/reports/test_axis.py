from __future__ import annotations

import random
from itertools import pairwise

import pytest

from paceline.reports.axis import build_x_axis, build_y_axis


def test_labels_of_steps_never_touch() -> None:
    drawn = random.Random(4)
    ranges = [(0.0, 1.0), (0.0, 100_000.0), (1_000_000.0, 1_000_040.0), (7.0, 7.0)]
    ranges += [(low, low + 10 ** drawn.uniform(0, 8)) for low in (drawn.uniform(0, 10**7) // 1 for _ in range(300))]
    for low, high in ranges:
        axis = build_x_axis((low, high), 40, 368, 6.6)
        ends = [
            (axis.place(tick) - 3.3 * len(label), axis.place(tick) + 3.3 * len(label)) for tick, label in axis.ticks
        ]
        assert axis.ticks, (low, high)
        assert all(before[1] < after[0] for before, after in pairwise(ends)), (low, high, axis.ticks)
        assert all(tick == int(tick) for tick, _ in axis.ticks)


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [-2.0, 5.0], [1e-9, 2e-9], [0.0, 18.4], [1e9, 1e9 + 1]])
def test_every_value_has_its_place(values: list[float]) -> None:
    for from_zero in (False, True):
        axis = build_y_axis(values, 184, 26, from_zero=from_zero)
        assert all(26 <= axis.place(value) <= 184 for value in values)
        assert 1 <= len(axis.ticks) <= 6
        assert all(axis.holds(tick) for tick, _ in axis.ticks)
        if from_zero and min(values) > 0 and max(values) - min(values) > 0:
            assert axis.low == 0


def test_without_a_value_there_are_no_ticks() -> None:
    assert build_y_axis([], 184, 26).ticks == []
