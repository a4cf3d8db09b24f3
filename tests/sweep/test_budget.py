"""The budget: repeats as the ordinary analysis needs them, and costs that one stalled trial does not move."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from paceline.sweep.budget import Costs, repeats_by_noise
from paceline.sweep.observation import Observation
from paceline.sweep.power import repeats_for
from tests.sweep.trials import SETTINGS, STEPS, trial

GRID = replace(SETTINGS, racing=False)


def rounds_of(noise: float, rounds: int, cases: int = 36, seed: int = 0) -> list[Observation]:
    generator = random.Random(seed)
    return [Observation(f"c{i}", r, generator.gauss(3, noise)) for r in range(1, rounds + 1) for i in range(cases)]


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_a_grid_repeats_as_often_as_its_noise_asks_for(noise: float) -> None:
    wanted = repeats_for(0.03, noise)
    assert repeats_by_noise(rounds_of(noise, 4), [36] * 4, 36, GRID) == pytest.approx(wanted, abs=0.2 * wanted)


def test_a_race_that_knows_little_does_not_think_the_grid_is_cheap() -> None:
    """Two cases that agree by luck: their noise is not believed yet. With many trials, it is."""
    lucky = [Observation(c, r, 3.0 + 0.001 * (r % 2)) for c in "ab" for r in (1, 2, 3)]
    assert repeats_by_noise(lucky, [2, 2, 2], 36, SETTINGS) > repeats_by_noise(lucky, [2, 2, 2], 36, GRID)
    assert repeats_by_noise(rounds_of(0.003, 4), [36] * 4, 36, SETTINGS) == 3


def test_a_race_counts_drift_between_its_short_rounds_as_the_grids() -> None:
    """Rounds of three cases on a machine that changes from round to round: a round of 36 would meet all of that."""
    generator, observations = random.Random(3), list[Observation]()
    for number in range(1, 13):
        mood = generator.gauss(0, 0.03)
        observations += [Observation(c, number, 3 + mood + generator.gauss(0, 0.003)) for c in "abc"]
    assert repeats_by_noise(observations, [3] * 12, 36, SETTINGS) >= 10
    assert repeats_by_noise(observations, [3] * 12, 3, SETTINGS) < 6


def test_one_trial_that_stood_still_does_not_make_the_grid_dear() -> None:
    results = [trial(f"c{i}", 1000.0, r) for i in range(6) for r in (1, 2)]
    usual = Costs(results, SETTINGS).trial("c0", STEPS)
    stalled = [replace(results[0], device_s=5000.0), *results[1:]]
    assert Costs(stalled, SETTINGS).trial("c0", STEPS) == usual == 15.0
    assert Costs([stalled[0], *results[2:]], SETTINGS).trial("c0", STEPS) <= 5 + 3 * 10
