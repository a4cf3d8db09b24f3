from __future__ import annotations

import random

import pytest

from paceline.playbook.trend import find_slope, find_trend, say_lack

STEPS = [5.0 * number for number in range(1, 81)]


def noisy(seed: int, slope: float = 0.0, spread: float = 0.01) -> list[float]:
    """A level of 1 with noise, and a slope per step."""
    draw = random.Random(seed)
    return [1.0 + slope * step + draw.gauss(0, spread) for step in STEPS]


def test_what_stands_still_is_shown_to() -> None:
    trend = find_trend(STEPS, [0.4] * 80)
    assert trend is not None
    assert (trend.change, trend.low, trend.high) == (0.0, 0.0, 0.0)
    assert "steps 205 to 400 (40 rows)" in trend.window


def test_a_warm_up_is_not_growth_and_a_leak_is() -> None:
    warm = [0.2 + 0.005 * number for number in range(40)] + [0.4] * 40
    still = find_trend(STEPS, warm)
    assert still is not None
    assert still.high == 0
    leak = find_trend(STEPS, [0.4 + 0.0005 * step for step in STEPS])
    assert leak is not None
    # From step 205 to 400 by 0.0005 a step, of a level of 0.55.
    assert leak.change == pytest.approx(0.0005 * 195 / 0.55125, rel=1e-3)
    assert leak.low == pytest.approx(leak.high)


def test_a_leak_below_the_noise_of_a_row_is_found_and_a_few_wild_rows_are_not_one() -> None:
    leaks = [find_trend(STEPS, noisy(seed, slope=0.0002)) for seed in range(20)]
    assert all(leak is not None and leak.low > 0 for leak in leaks)
    wild = noisy(1)
    wild[-3:] = [2.0, 2.0, 2.0]
    trend = find_trend(STEPS, wild)
    assert trend is not None
    assert trend.low < 0 < trend.change < 0.01


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    x = [float(number) for number in range(30)]
    held = 0
    for seed in range(300):
        draw = random.Random(seed)
        _, low, high = find_slope(x, [0.1 * each + draw.gauss(0, 1) for each in x])
        held += low <= 0.1 <= high
    assert 0.91 <= held / 300 <= 0.99


def test_too_few_rows_tell_nothing() -> None:
    assert find_trend(STEPS[:14], [1.0] * 14) is None
    assert find_trend(STEPS, [0.0] * 80) is None


def test_a_long_series_is_thinned() -> None:
    steps = [float(number) for number in range(4000)]
    trend = find_trend(steps, [1.0 + 1e-5 * step for step in steps])
    assert trend is not None
    assert trend.change == pytest.approx(1e-5 * 1999 / 1.03, rel=0.01)
    # And says so: the window names what was used, not only what was there.
    assert "steps 2,000 to 3,999 (400 of 2,000 rows, evenly spaced)" in trend.window


def test_why_there_is_none() -> None:
    assert say_lack([1.0] * 10) == "5 rows in the second half of the run, and a slope needs 8"
    assert say_lack([1.0]) == "1 row in the second half of the run, and a slope needs 8"
    assert say_lack([0.0] * 80) == "no level above 0 in the second half of the run"
