"""Losses at matched samples: what is worse, what only looks so, and what breaks away late."""

from __future__ import annotations

import math
import random

from paceline.sweep.guard import check_soundness, compare_losses, mean_curve, value_at


def curve(step: int = 64, until: int = 6400, rise: float = 0.0, after: int = 0, seed: int | None = None):
    generator = random.Random(seed)
    found = []
    for samples in range(step, until + 1, step):
        loss = 4 + 3 * math.exp(-samples / 1500)
        loss *= 1 + rise * max(samples - after, 0) / until
        found.append((samples, loss * (1 + (generator.gauss(0, 0.01) if seed is not None else 0))))
    return found


def test_the_same_training_at_another_batch_is_no_worse() -> None:
    quality = compare_losses(curve(step=100), curve(step=64), 0.02)
    assert not quality.is_worse
    assert quality.excess is not None
    assert abs(quality.excess) < 1e-3


def test_matched_by_samples_not_by_steps() -> None:
    """Half the samples in as many windows: behind at every step, equal at every sample."""
    assert not compare_losses(curve(step=32, until=3200), curve(step=64), 0.02).is_worse


def test_noise_between_windows_is_not_a_difference() -> None:
    assert not any(compare_losses(curve(seed=s), curve(seed=100 + s), 0.02).is_worse for s in range(50))


def test_worse_beyond_the_tolerance() -> None:
    assert compare_losses(curve(rise=0.04), curve(), 0.02).is_worse
    assert not compare_losses(curve(rise=0.01), curve(), 0.02).is_worse


def test_the_same_early_loss_and_a_divergence_later() -> None:
    late = curve(rise=0.5, after=4000)
    assert not compare_losses(late[:60], curve(), 0.02).is_worse
    quality = compare_losses(late, curve(), 0.02)
    assert quality.is_worse
    assert "6,400 samples" in quality.evidence


def test_breaking_away_counts_even_if_it_comes_back() -> None:
    bumped = [(s, loss * (1.3 if 3000 < s < 4500 else 1.0)) for s, loss in curve()]
    assert compare_losses(bumped, curve(), 0.02).is_worse


def test_not_a_number_is_worse_at_once() -> None:
    quality = compare_losses([*curve()[:20], (1344, math.nan)], curve(), 0.02)
    assert quality.is_worse
    assert "1,344" in quality.evidence


def test_nothing_to_compare_is_said() -> None:
    assert "no loss" in compare_losses([], curve(), 0.02).evidence
    assert not compare_losses(curve(), [], 0.02).is_worse


def test_between_two_windows() -> None:
    assert value_at([(100, 4.0), (200, 2.0)], 150) == 3.0
    assert mean_curve([[(100, 4.0), (200, 2.0)], [(50, 5.0), (150, 2.0)]]) == [(100, 3.75), (200, 2.0)]


def test_a_larger_batch_is_held_against_the_baselines_end_where_the_baseline_has_none() -> None:
    """Four times the samples in as many steps."""
    large = curve(step=256, until=25_600)
    assert not compare_losses(large, curve(seed=1), 0.02).is_worse
    late = [(samples, 50.0 if samples > 20_000 else loss) for samples, loss in large]
    assert compare_losses(late, curve(), 0.02).is_worse


def test_a_loss_that_falls_silent_is_not_sound() -> None:
    """'loss ([0-9.]+)' does not match nan."""
    told = curve(until=6400)
    assert check_soundness(told, samples=6400) is None
    assert check_soundness(told, samples=0) is None
    assert check_soundness(told[:-2], samples=6400) is None
    assert "3,200 samples" in (check_soundness(told[:50], samples=6400) or "")
    assert check_soundness(told[::30], samples=6400) is None
    assert "not a number from 128" in (check_soundness([(64, 4.0), (128, math.inf), (192, 4.0)], samples=0) or "")
    assert check_soundness([], samples=6400) is None
