from __future__ import annotations

import math
import random

import pytest

from paceline.reports.ticks import log_ticks, round_ticks, tick_labels


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 23.7, 6, [0, 5, 10, 15, 20]),
        (0, 1, 6, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.1, 0.32, 5, [0.1, 0.15, 0.2, 0.25, 0.3]),
        (-3, 3, 5, [-2, 0, 2]),
        (2.9, 2.9, 5, [2.9]),
        (0, 1e-5, 6, [0, 2e-6, 4e-6, 6e-6, 8e-6, 1e-5]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, most: int, expected: list[float]) -> None:
    assert round_ticks(low, high, most) == pytest.approx(expected)


def test_steps_have_no_fractions() -> None:
    assert round_ticks(0, 2, 8, whole=True) == [0, 1, 2]
    assert round_ticks(0, 1, 8, whole=True) == [0, 1]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.9, 60, [1, 2, 5, 10, 20, 50]), (0.9, 600, [1, 3, 10, 30, 100, 300]), (1e-9, 1e9, [1e-9, 1e-5, 1e-1, 1e3, 1e7])],
)
def test_logarithmic_ticks(low: float, high: float, expected: list[float]) -> None:
    assert log_ticks(low, high, 6) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0, 20_000, 40_000], ["0", "20k", "40k"]),
        ([0, 500, 1000, 1500], ["0", "500", "1000", "1500"]),
        ([0, 2e6, 4e6], ["0", "2M", "4M"]),
        ([0, 0.0005, 0.001], ["0", "0.0005", "0.0010"]),
        ([0, 2e-5, 4e-5], ["0", "2e-5", "4e-5"]),
        ([0, 5e-5, 1e-4, 1.5e-4], ["0", "5.0e-5", "1.0e-4", "1.5e-4"]),
        ([0.35, 0.40, 0.45], ["0.35", "0.40", "0.45"]),
        ([5e28, 1e29], ["5.0e+28", "1.0e+29"]),
        ([0.0], ["0"]),
    ],
)
def test_labels(ticks: list[float], labels: list[str]) -> None:
    assert tick_labels(ticks) == labels


def test_labels_tell_ticks_apart_and_read_back_to_them() -> None:
    drawn = random.Random(3)
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    for _ in range(2000):
        low = drawn.choice((0.0, drawn.uniform(-1, 1) * 10 ** drawn.uniform(-8, 14)))
        high = low + 10 ** drawn.uniform(-6, 14) * max(1.0, abs(low) * 1e-3)
        ticks = round_ticks(low, high, 6)
        labels = tick_labels(ticks)
        assert 1 <= len(ticks) <= 6
        assert len(set(labels)) == len(labels), (low, high, labels)
        for tick, label in zip(ticks, labels, strict=True):
            read = float(label[:-1]) * units[label[-1]] if label[-1] in units else float(label)
            assert math.isclose(read, tick, rel_tol=1e-6, abs_tol=1e-12), (tick, label)
