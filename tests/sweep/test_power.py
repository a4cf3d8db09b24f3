"""What repeats can show, against figures that are known and against simulated sweeps."""

from __future__ import annotations

import random
import statistics

import pytest

from paceline.sweep.power import power_of, repeats_for, say_power, visible_effect


def test_three_percent_under_two_percent_noise_with_two_repeats() -> None:
    assert round(power_of(0.03, noise=0.02, repeats=2), 2) == 0.15
    assert repeats_for(0.03, noise=0.02) == 9
    said = say_power(0.03, noise=0.02, repeats=2)
    assert said is not None
    assert "power of 0.15" in said
    assert "takes 9" in said
    assert say_power(0.03, noise=0.02, repeats=9) is None


def test_it_is_what_simulated_sweeps_find() -> None:
    generator, repeats, found = random.Random(5), 4, 0
    for _ in range(4000):
        one, two = ([generator.gauss(mean, 0.02) for _ in range(repeats)] for mean in (0.03, 0.0))
        spread = ((statistics.variance(one) + statistics.variance(two)) / repeats) ** 0.5
        found += abs(statistics.fmean(one) - statistics.fmean(two)) / spread > 2.4469  # Student's, 6 degrees, 95 %
    assert found / 4000 == pytest.approx(power_of(0.03, 0.02, repeats), abs=0.02)


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.02, 0.1])
def test_one_repeat_less_would_not_do(noise: float) -> None:
    needed = repeats_for(0.03, noise)
    assert power_of(0.03, noise, needed) >= 0.8
    assert needed == 3 or power_of(0.03, noise, needed - 1) < 0.8


def test_what_is_visible_is_what_has_the_power() -> None:
    seen = visible_effect(0.02, repeats=5)
    assert seen is not None
    assert power_of(seen, 0.02, 5) == pytest.approx(0.8, abs=1e-6)


def test_the_ends() -> None:
    assert power_of(0.03, noise=0.02, repeats=1) == 0.0
    assert power_of(0.03, noise=0.0, repeats=2) == 1.0
    assert power_of(0.03, noise=1e-5, repeats=3) == 1.0
    assert visible_effect(0.02, repeats=1) is None
