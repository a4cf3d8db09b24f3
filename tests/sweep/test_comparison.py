"""The fit over all rounds: intervals that hold as often as they say, rounds that do not count, accidents that do not either."""

from __future__ import annotations

import random

import pytest

from paceline.sweep.comparison import compare
from paceline.sweep.observation import Observation


def simulate(seed: int, rounds: int, cases: int = 12, noise: float = 0.02) -> list[Observation]:
    generator = random.Random(seed)
    found = []
    for number in range(rounds):
        pace = generator.gauss(0, 0.1)
        found += [Observation(f"c{i}", number, 3 + pace + generator.gauss(0, noise)) for i in range(cases)]
    return found


@pytest.mark.parametrize("rounds", [2, 5])
def test_an_interval_holds_the_truth_as_often_as_it_says(rounds: int) -> None:
    outside = 0
    for seed in range(200):
        comparison = compare(simulate(seed, rounds))
        assert comparison is not None
        difference, deviation = comparison.difference("c0", "c1")
        outside += abs(difference) > comparison.reach(0.025) * deviation
    assert outside / 200 <= 0.075


def test_the_noise_is_found_whatever_the_rounds_do() -> None:
    comparison = compare(simulate(1, rounds=10))
    assert comparison is not None
    assert comparison.noise == pytest.approx(0.02, rel=0.2)
    assert comparison.freedom > 90


def test_a_round_in_which_everything_is_slow_says_nothing() -> None:
    usual = [Observation(case, r, value) for r in (1, 2) for case, value in (("a", 3.0), ("b", 3.1))]
    slow = [Observation("a", 3, 2.0), Observation("b", 3, 2.1)]
    comparison = compare([*usual, *slow])
    assert comparison is not None
    assert comparison.difference("b", "a")[0] == pytest.approx(0.1, abs=1e-6)


def test_an_accident_neither_moves_its_case_nor_hides_the_others() -> None:
    clean = simulate(3, rounds=3)
    struck = [o if (o.case, o.round) != ("c4", 1) else Observation("c4", 1, o.value - 0.7) for o in clean]
    before, after = compare(clean), compare(struck)
    assert before is not None
    assert after is not None
    assert after.difference("c4", "c0")[0] == pytest.approx(before.difference("c4", "c0")[0], abs=0.025)
    assert after.noise < 1.3 * before.noise


def test_doubt_makes_a_trial_count_less() -> None:
    sure = [Observation(case, r, value) for r in (1, 2) for case, value in (("a", 3.0), ("b", 3.0))]
    doubted = [Observation("a", 3, 3.0, doubt=0.01), Observation("b", 3, 3.2, doubt=0.01)]
    comparison = compare([*sure, *doubted])
    assert comparison is not None
    assert comparison.difference("b", "a")[0] < 0.02


def test_rounds_without_a_common_case_are_not_trusted() -> None:
    apart = [Observation("a", 1, 3.0), Observation("a", 2, 3.0), Observation("b", 3, 3.05), Observation("b", 4, 3.05)]
    together = [Observation(case, r, 3.0 + 0.05 * (case == "b")) for r in (1, 2) for case in ("a", "b")]
    far, near = compare(apart), compare(together)
    assert far is not None
    assert near is not None
    assert far.difference("a", "b")[1] > 0.04 > 0.02 > near.difference("a", "b")[1]


def test_nothing_is_nothing() -> None:
    assert compare([]) is None
