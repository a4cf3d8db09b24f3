"""Slow or struck: agreeing trials are slow, scattered ones may be accidents, and the bet is lost as rarely as it says."""

from __future__ import annotations

import random

import pytest

from paceline.sweep.comparison import compare
from paceline.sweep.mishap import Mishaps, count_mishaps, evidence_of_slowness
from paceline.sweep.observation import Observation

ROUGH = Mishaps(rate=0.125, size=0.7)
QUIET = Mishaps(rate=0.01, size=0.3)


def weigh(values: list[float], mishaps: Mishaps = ROUGH, deviation: float = 0.02) -> float:
    return evidence_of_slowness([(value, deviation) for value in values], mishaps)


def test_trials_that_agree_are_slow_and_trials_that_scatter_may_be_accidents() -> None:
    asked = 1440
    assert weigh([-1.4, -2.3]) < asked
    assert weigh([-0.3, -0.9, -0.5]) < asked
    assert weigh([-0.40, -0.41]) < asked < weigh([-0.40, -0.41, -0.39])
    assert weigh([-0.40, -0.41], QUIET) > asked
    assert weigh([-0.1, -0.1, 0.0]) < 1, "one that was as fast as the leader settles it"
    assert weigh([-0.03] * 9) > asked
    assert weigh([0.0] * 9) < 1


def test_equal_cases_win_the_bet_as_rarely_as_it_says() -> None:
    generator, sweeps, lost = random.Random(0), 400, 0
    for _ in range(sweeps):
        values: list[float] = []
        highest = 0.0
        for _ in range(6):  # however often one looks
            struck = generator.expovariate(1 / ROUGH.size) if generator.random() < ROUGH.rate else 0.0
            values.append(generator.gauss(0, 0.02) - struck)
            highest = max(highest, weigh(values))
        lost += highest >= 20
    assert lost <= 0.05 * sweeps


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_accidents_are_counted(rate: float) -> None:
    generator, observations, planted = random.Random(2), list[Observation](), 0
    for number in range(1, 7):
        for case in range(20):
            struck = 0.6 if generator.random() < rate else 0.0
            planted += struck > 0
            observations.append(Observation(f"c{case}", number, 3 + generator.gauss(0, 0.01) - struck))
    comparison = compare(observations)
    assert comparison is not None
    found = count_mishaps(comparison)
    assert found.rate == pytest.approx(planted / len(observations), abs=0.02)
    if rate:
        assert found.size == pytest.approx(0.6, abs=0.08)
