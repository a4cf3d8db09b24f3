"""Kin: shared values sharpen a guess, strong interactions and plans without axes do not blur it, and one bad trial is forgiven."""

from __future__ import annotations

import random

import pytest

from paceline.sweep.comparison import Comparison, compare
from paceline.sweep.kinship import hopes_of
from paceline.sweep.observation import Observation

CASES = [f"a={i // 9} b={i // 3 % 3} c={i % 3}" for i in range(36)]
VALUES = {case: dict(part.split("=") for part in case.split()) for case in CASES}


def draw(seed: int, shared: float, own: float) -> dict[str, float]:
    generator = random.Random(seed)
    parts = {(axis, v): generator.gauss(0, shared) for axis in "abc" for v in "0123"}
    return {case: sum(parts[pair] for pair in VALUES[case].items()) + generator.gauss(0, own) for case in CASES}


def measure(truth: dict[str, float], seed: int, noise: float = 0.03) -> Comparison:
    generator = random.Random(seed)
    # Two rounds: with one, the noise would only be presumed.
    observations = [Observation(case, r, truth[case] + generator.gauss(0, noise)) for r in (1, 2) for case in CASES]
    comparison = compare(observations)
    assert comparison is not None
    return comparison


def errors(shared: float, own: float, values: dict[str, dict[str, str]]) -> tuple[float, float]:
    """Mean squares, against the mean of all: as measured, and as guessed with kin."""
    raw = guessed = 0.0
    for seed in range(20):
        truth = draw(seed, shared, own)
        comparison = measure(truth, seed + 100)
        hopes = hopes_of(comparison, values)
        level = sum(truth.values()) / len(truth)
        for found, add in ((comparison.effects, "raw"), ({c: h.effect for c, h in hopes.items()}, "kin")):
            middle = sum(found.values()) / len(found)
            square = sum((found[c] - middle - truth[c] + level) ** 2 for c in CASES)
            raw, guessed = (raw + square, guessed) if add == "raw" else (raw, guessed + square)
    return raw, guessed


def test_cases_that_share_values_sharpen_each_other() -> None:
    raw, guessed = errors(0.05, 0.01, VALUES)
    assert guessed < 0.5 * raw


@pytest.mark.parametrize("values", [VALUES, {}], ids=["axes that say nothing", "no axes"])
def test_where_axes_say_little_each_case_stands_for_itself(values: dict[str, dict[str, str]]) -> None:
    raw, guessed = errors(0.0, 0.15, values)
    assert guessed < 1.05 * raw


def test_a_suspect_is_thought_of_as_its_kin_are() -> None:
    truth = draw(3, 0.05, 0.01)
    best = max(truth, key=lambda case: truth[case])
    comparison = measure(truth | {best: truth[best] - 0.6}, 4)
    struck, believed = (hopes_of(comparison, VALUES, suspects)[best] for suspects in ({best}, set[str]()))
    level = sum(comparison.effects[c] - truth[c] for c in CASES if c != best) / 35
    assert struck.effect - level == pytest.approx(truth[best], abs=0.05)
    assert believed.effect - level < truth[best] - 0.2


def test_few_cases_are_taken_as_they_are() -> None:
    comparison = compare([Observation(c, r, 3.0 - 0.1 * (c == "b")) for c in "ab" for r in (1, 2)])
    assert comparison is not None
    hopes = hopes_of(comparison, {})
    assert hopes["a"].effect - hopes["b"].effect == pytest.approx(0.1, abs=1e-6)
