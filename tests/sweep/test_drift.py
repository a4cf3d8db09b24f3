"""The fit in time: what neighbours share is taken out, intervals hold, and a pause makes another machine."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from paceline.sweep.comparison import Comparison, compare
from paceline.sweep.observation import Observation

STEP_S, MEMORY_S = 12.0, 60.0


def simulate(
    seed: int, rounds: int = 4, cases: int = 12, own: float = 0.008, drift: float = 0.018
) -> list[Observation]:
    """Equal cases in shuffled rounds on a machine that forgets itself within five trials."""
    generator = random.Random(seed)
    found, mood = [], generator.gauss(0, drift)
    keep = math.exp(-STEP_S / MEMORY_S)
    for number in range(1, rounds + 1):
        order = list(range(cases))
        generator.shuffle(order)
        for case in order:
            mood = keep * mood + math.sqrt(1 - keep**2) * generator.gauss(0, drift)
            value = 3 + mood + generator.gauss(0, own)
            found.append(Observation(f"c{case}", number, value, time_s=1.7e9 + STEP_S * len(found)))
    return found


def fit(observations: list[Observation]) -> Comparison:
    comparison = compare(observations)
    assert comparison is not None
    return comparison


def test_neighbours_say_more_than_rounds() -> None:
    squares = {"times": 0.0, "rounds": 0.0}
    for seed in range(60):
        observations = simulate(seed)
        for name, seen in (("times", observations), ("rounds", [replace(o, time_s=None) for o in observations])):
            squares[name] += fit(seen).difference("c0", "c1")[0] ** 2
    assert squares["times"] < 0.75 * squares["rounds"]


@pytest.mark.parametrize("rounds", [2, 5])
@pytest.mark.parametrize("drift", [0.0, 0.018])
def test_an_interval_holds_the_truth_as_often_as_it_says(rounds: int, drift: float) -> None:
    outside = 0
    for seed in range(150):
        comparison = fit(simulate(seed, rounds, own=0.01, drift=drift))
        difference, deviation = comparison.difference("c0", "c1")
        outside += abs(difference) > comparison.reach(0.025) * deviation
    assert outside / 150 <= 0.085


def test_the_noise_is_that_of_trials_far_apart() -> None:
    found = [fit(simulate(seed, rounds=8)).noise for seed in range(10)]
    assert sum(found) / 10 == pytest.approx(math.hypot(0.008, 0.018), rel=0.15)


def test_a_trial_that_was_struck_neither_moves_its_case_nor_hides_the_others() -> None:
    clean = simulate(5)
    struck = [replace(o, value=o.value - 0.7) if (o.case, o.round) == ("c4", 2) else o for o in clean]
    before, after = fit(clean), fit(struck)
    assert after.difference("c4", "c0")[0] == pytest.approx(before.difference("c4", "c0")[0], abs=0.025)
    assert after.noise < 1.3 * before.noise
    assert [round(size, 1) for size in after.struck] == [0.7]
    assert not before.struck


def test_after_a_pause_the_machine_may_be_another() -> None:
    """Six cases run once more on the next day, when everything is slower by a tenth."""
    first = simulate(7)
    again = [
        replace(o, round=5, value=o.value - 0.1, time_s=(o.time_s or 0.0) + 86_400)
        for o in simulate(8, rounds=1)
        if int(o.case[1:]) < 6
    ]
    before, after = fit(first), fit(first + again)
    for case in ("c0", "c5"):
        assert after.difference(case, "c9")[0] == pytest.approx(before.difference(case, "c9")[0], abs=0.02)
    assert after.noise < 1.3 * before.noise


def test_what_short_trials_have_in_common_is_no_difference() -> None:
    """Every case begins slowly, and half of the cases ran whole trials, too: the others are not behind for that."""
    whole = [replace(o, round=o.round + 1) for o in simulate(9) if int(o.case[1:]) < 6]
    short = [
        replace(o, value=o.value - 0.1, doubt=0.0004, time_s=(o.time_s or 0) + 3 * STEP_S * i + 5)
        for i, o in enumerate(simulate(10, rounds=1))
    ]
    effects = fit([*short, *whole]).effects
    both, only = (sum(effects[f"c{i}"] for i in cases) / 6 for cases in (range(6), range(6, 12)))
    assert only == pytest.approx(both, abs=0.03)


def test_trials_side_by_side_and_few_trials() -> None:
    """Pairs at the same moment; and with too few to know a drift, rounds are what is compared."""
    pairs = [replace(o, time_s=1.7e9 + STEP_S * (i // 2)) for i, o in enumerate(simulate(11))]
    assert fit(pairs).difference("c0", "c1")[1] < 0.02
    few = [Observation(c, r, 3.0, time_s=10.0 * r + i) for r in (1, 2) for i, c in enumerate("ab")]
    assert fit(few).effects == fit([replace(o, time_s=None) for o in few]).effects
