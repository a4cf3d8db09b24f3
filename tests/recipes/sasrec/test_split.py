import numpy as np
import pytest

from paceline.recipes.sasrec.interactions import Interactions
from paceline.recipes.sasrec.split import split_last


@pytest.fixture
def split():
    # users with 5, 1, 2, 3 and 4 events
    offsets = np.cumsum([0, 5, 1, 2, 3, 4])
    items = np.array([4, 1, 4, 2, 3, 1, 1, 2, 5, 6, 7, 1, 2, 3, 8])
    names = np.arange(1, 9).astype(bytes)
    return split_last(Interactions(offsets, items, None, names[:5], names))


def test_the_last_is_test_and_the_one_before_validation(split):
    items = split.interactions.items
    assert split.held_out.tolist() == [0, 3, 4]
    assert items[split.answers("test")].tolist() == [3, 7, 8]
    assert items[split.answers("validation")].tolist() == [2, 6, 3]


def test_users_with_fewer_than_three_events_are_trained_on_only(split):
    assert split.train_lengths.tolist() == [3, 1, 2, 1, 2]
    assert split.trained.tolist() == [0, 2, 4]


def test_popularity_counts_training_events_only(split):
    assert split.train_counts().tolist() == [4, 2, 0, 2, 1, 0, 0, 0]
