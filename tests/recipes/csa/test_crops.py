"""Crops follow from seed, epoch and sample, and take whole words with them."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.recipes.csa.crops import Crop, crop_lengths, draw_crop, draw_places, middle_crop, words_within
from paceline.workload import Draw

BOUNDS = (16_000, 48_000)


def test_places_are_keyed_by_seed_epoch_and_sample() -> None:
    ids = np.arange(50)
    lengths, starts = draw_places(Draw(1, 2), ids)
    again, _ = draw_places(Draw(1, 2, batch=(3, 4)), ids[::-1].copy())
    assert np.array_equal(lengths, again[::-1])
    assert not np.array_equal(lengths, starts)
    for other in (Draw(1, 3), Draw(2, 2)):
        assert not np.intersect1d(draw_places(other, ids)[0], lengths).size
    assert 0 <= lengths.min() < 0.1
    assert 0.9 < lengths.max() < 1


def test_lengths_lie_between_the_bounds_and_short_utterances_are_whole() -> None:
    samples = np.array([200_000, 200_000, 30_000, 1_600])
    assert crop_lengths(samples, BOUNDS, np.zeros(4)).tolist() == [16_000, 16_000, 16_000, 1_600]
    nearly = np.full(4, 1 - 1e-9)
    assert crop_lengths(samples, BOUNDS, nearly).tolist() == [48_000, 48_000, 30_000, 1_600]
    assert crop_lengths(samples, None, nearly).tolist() == samples.tolist()


@pytest.mark.parametrize("start_at", [0.0, 0.5, 1 - 1e-9])
def test_a_crop_stays_inside(start_at: float) -> None:
    for samples in (1_600, 16_000, 50_000):
        crop = draw_crop(samples, BOUNDS, 0.7, start_at)
        assert 0 <= crop.start <= crop.start + crop.length <= samples
    assert draw_crop(50_000, BOUNDS, 1 - 1e-9, 1 - 1e-9) == Crop(2_000, 48_000, 50_000)


def test_what_is_evaluated_lies_in_the_middle() -> None:
    assert middle_crop(100_000, BOUNDS) == Crop(26_000, 48_000, 100_000)
    assert middle_crop(30_000, BOUNDS) == Crop(0, 30_000, 30_000)
    assert middle_crop(100_000, None) == Crop(0, 100_000, 100_000)


def test_words_by_hand() -> None:
    """Letters and pauses: 3+1, 5+1, 5+1, 3+1: 20 of them, so 1,000 samples each; middles at 1.5, 6.5, 12.5, 17.5 thousand."""
    text = "THE QUICK BROWN FOX"
    assert words_within(text, Crop(0, 7_000, 20_000)) == "THE QUICK"
    assert words_within(text, Crop(0, 6_500, 20_000)) == "THE"
    assert words_within(text, Crop(1_600, 11_000, 20_000)) == "QUICK BROWN"
    assert words_within(text, Crop(0, 20_000, 20_000)) == text
    assert words_within(text, Crop(8_000, 1_000, 20_000)) == "QUICK", "no middle is inside: the nearest word"
    assert words_within("ÉTÉ", Crop(5, 10, 20_000)) == "ÉTÉ"


def test_words_are_whole_and_in_order() -> None:
    text = "one two three four five six seven"
    random = np.random.default_rng(0)
    for _ in range(100):
        crop = draw_crop(80_000, BOUNDS, *random.random(2).tolist())
        found = words_within(text, crop)
        assert found
        assert found in text
        assert set(found.split()) <= set(text.split())
