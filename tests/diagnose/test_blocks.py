"""Ranks beside each other: what each step says of each of them."""

from __future__ import annotations

import random
from statistics import median

import pytest

from paceline.diagnose.blocks import Collector, _above_others
from paceline.telemetry.pulse import Pulse


@pytest.mark.parametrize("num", [2, 3, 4, 5, 64, 65])
def test_each_is_compared_with_the_median_of_the_others(num: int) -> None:
    chance = random.Random(num)
    for _ in range(50):
        values = [float(chance.randrange(num)) for _ in range(num)]  # many of them alike
        others = [values[:place] + values[place + 1 :] for place in range(num)]
        assert _above_others(values) == [value - median(rest) for value, rest in zip(values, others, strict=True)]


def pulse(rank: int, waits: int) -> Pulse:
    recent = tuple(float(number) for number in range(max(0, waits - 64), waits))
    own = tuple(each for number in recent for each in (number, 1.0, 2.0, 0.5))
    spent_s = {"forward": 0.1 * waits}
    return Pulse(rank, 1, 1, waits + 1, "forward", 0.0, 0, 0, waits, sum(recent), spent_s, waits, recent, own)


def test_only_steps_that_all_ranks_still_remember_are_compared() -> None:
    collector = Collector({rank: pulse(rank, 0) for rank in range(3)})
    assert (
        collector.add({0: pulse(0, 80), 1: pulse(1, 10), 2: pulse(2, 10)}) == []
    )  # one is far ahead: nothing in common
    blocks = collector.add({0: pulse(0, 80), 1: pulse(1, 78), 2: pulse(2, 79)})
    assert len(blocks) == 6  # 30 steps at most, of five each
    assert blocks[-1].waits_ms == {0: 75.0, 1: 75.0, 2: 75.0}
    assert set(blocks[-1].excess.values()) == {0.0}
    assert blocks[-1].rows[-1].own == ((77.0, 1.0, 2.0, 0.5),) * 3
