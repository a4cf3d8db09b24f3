import numpy as np
import pytest
import torch
from torch.nn import functional as F

from paceline.recipes.sasrec.catalogue import rank_among, rank_among_all
from paceline.recipes.sasrec.generate import generate_interactions
from paceline.recipes.sasrec.popularity import rank_by_popularity
from paceline.recipes.sasrec.split import split_last


@pytest.fixture
def split():
    return split_last(generate_interactions(200, 60, 12, 0))


def model_of_counts(split):
    """Hidden states and weights whose product is each item's count, for every user."""
    counts = torch.from_numpy(split.train_counts()).float()
    return torch.ones(len(split.held_out), 1), F.pad(counts, (1, 0))[:, None]


def answers_of(split, name):
    return torch.from_numpy(split.interactions.items[split.answers(name)])


def histories_of(split, name):
    """(U, S) what each user had before the answer, 0 after the end."""
    firsts = split.interactions.offsets[split.held_out]
    rows = [
        torch.from_numpy(split.interactions.items[first:answer])
        for first, answer in zip(firsts, split.answers(name), strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


@pytest.mark.parametrize("mask_seen", [False, True])
@pytest.mark.parametrize("name", ["validation", "test"])
def test_ranks_are_those_of_a_model_that_scores_by_count(split, name, mask_seen):
    seen = histories_of(split, name) if mask_seen else None
    expected = rank_among_all(*model_of_counts(split), answers_of(split, name), seen)
    assert np.array_equal(rank_by_popularity(split, name, mask_seen), expected.numpy())


@pytest.mark.parametrize("name", ["validation", "test"])
def test_ranks_among_candidates_are_those_of_a_model_that_scores_by_count(split, name):
    candidates = np.random.default_rng(0).integers(0, 61, (len(split.held_out), 20))
    expected = rank_among(*model_of_counts(split), answers_of(split, name), torch.from_numpy(candidates))
    ranks = rank_by_popularity(split, name, mask_seen=False, candidates=candidates)
    assert np.array_equal(ranks, expected.numpy())
    assert ranks.dtype == np.int64
