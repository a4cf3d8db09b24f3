from __future__ import annotations

import numpy as np
import pytest

from paceline.serving.ordering import descending, is_first, positions_within, stable_order


@pytest.mark.parametrize("seed", range(20))
def test_orders_are_those_of_a_stable_sort(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.choice((0, 1, 2, 1000)))
    keys = random.integers(0, random.choice((2, 1 << 16, 1 << 32)), count).astype(np.uint32)
    assert stable_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()
    drawn = random.normal(size=count)
    scores = np.where(random.random(count) < 0.3, np.round(drawn), drawn).astype(np.float32)
    assert descending(scores).tolist() == sorted(range(count), key=lambda row: (-scores[row], row))


def test_zeros_are_equal_and_infinities_at_the_ends() -> None:
    scores = np.array([-0.0, 0.0, -np.inf, np.inf, 1e-40, -1e-40, -0.0], np.float32)
    assert descending(scores).tolist() == [3, 4, 0, 1, 6, 5, 2]


def test_positions_and_firsts() -> None:
    groups = np.array([7, 3, 7, 7, 70_000, 3, 70_000])
    assert positions_within(groups).tolist() == [0, 0, 1, 2, 0, 1, 1]
    assert is_first(groups).tolist() == [True, True, False, False, True, False, False]
    assert positions_within(groups[:0]).tolist() == is_first(groups[:0]).tolist() == []
