import numpy as np
import pytest

from paceline.recipes.sasrec.generate import generate_interactions
from paceline.recipes.sasrec.split import split_last
from paceline.recipes.sasrec.windows import Windows


@pytest.fixture
def split():
    return split_last(generate_interactions(users=40, items=25, events_per_user=12, seed=1))


def test_last_windows_end_with_the_last_training_target(split):
    windows = Windows(split, 4, is_random=False)
    chosen = np.arange(len(windows))
    ends = windows.firsts(chosen, None) + windows.lengths
    assert (ends == split.interactions.offsets[split.trained] + split.train_lengths[split.trained] - 1).all()


def test_random_windows_reach_every_place_equally_often(split):
    windows = Windows(split, 4, is_random=True)
    longest = int(np.argmax(split.train_lengths[split.trained]))
    draws = (np.arange(10_000) + 0.5) / 10_000
    firsts = windows.firsts(np.full(10_000, longest), draws) - split.interactions.offsets[split.trained][longest]
    num_targets = split.train_lengths[split.trained][longest] - 1
    counts = np.bincount(firsts)
    assert len(counts) == num_targets - 4 + 1
    assert counts.max() - counts.min() <= 1
    assert (
        windows.firsts(np.array([longest]), np.array([np.nextafter(1, 0)]))
        == firsts.max() + split.interactions.offsets[split.trained][longest]
    )


@pytest.mark.parametrize("is_random", [False, True])
def test_target_frequencies_are_those_of_a_count(split, is_random):
    windows, items = Windows(split, 4, is_random=is_random), split.interactions.items
    counted = np.zeros(split.interactions.num_items)
    for window in range(len(windows)):
        slack = int(split.train_lengths[split.trained][window] - 1 - windows.lengths[window])
        draws = (np.arange(slack + 1) + 0.5) / (slack + 1) if is_random else None
        count = 1 if draws is None else len(draws)
        for first in windows.firsts(np.full(count, window), draws):
            for place in range(windows.lengths[window]):
                counted[items[first + 1 + place] - 1] += 1 / (len(windows) * count * windows.lengths[window])
    frequencies = windows.target_frequencies(items, split.interactions.num_items)
    assert frequencies.sum() == pytest.approx(1)
    np.testing.assert_allclose(frequencies, counted, atol=1e-12)
