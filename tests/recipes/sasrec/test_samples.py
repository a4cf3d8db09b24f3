import pickle

import numpy as np
import pytest
import torch

from paceline.recipes.sasrec.generate import generate_interactions
from paceline.recipes.sasrec.interactions import Interactions
from paceline.recipes.sasrec.samples import EvaluationSet, TrainSet
from paceline.recipes.sasrec.split import split_last
from paceline.workload import Draw

DRAW = Draw(seed=3, epoch=1)


@pytest.fixture
def split():
    offsets = np.cumsum([0, 6, 2, 3, 5])
    items = np.array([1, 2, 3, 4, 5, 1, 6, 7, 1, 2, 3, 8, 8, 8, 9, 8])
    return split_last(Interactions(offsets, items, None, np.arange(4).astype(bytes), np.arange(1, 10).astype(bytes)))


def test_a_training_batch_is_what_its_docstring_says(split):
    train = TrainSet(split, max_length=50, num_negatives=0)
    batch = train.fetch([2, 0, 1], DRAW)
    assert len(train) == 3
    assert batch["ids"].tolist() == [2, 0, 1]
    assert batch["items"].tolist() == [[8, 8, 0], [1, 2, 3], [6, 0, 0]]
    assert batch["positions"].tolist() == [0, 1, 3, 4, 5, 6]
    assert batch["targets"].tolist() == [8, 8, 2, 3, 4, 7]


def test_the_window_is_the_last_of_training(split):
    batch = TrainSet(split, max_length=2, num_negatives=0).fetch([0], DRAW)
    assert batch["items"].tolist() == [[2, 3]]
    assert batch["targets"].tolist() == [3, 4]


def test_held_out_items_are_never_trained_on(split):
    # Item 9 is an answer only, 5 too; 1 is trained on as user 0's first event alone.
    batch = TrainSet(split, max_length=50, num_negatives=0).fetch(range(3), DRAW)
    trained = set(batch["items"].ravel().tolist()) | set(batch["targets"].tolist())
    assert trained == {0, 1, 2, 3, 4, 6, 7, 8}


def test_evaluation_inputs_are_everything_before_the_answer(split):
    validation = EvaluationSet(split, "validation", 50, mask_seen=False).fetch([0, 1, 2], DRAW)
    assert validation["items"].tolist() == [[1, 2, 3, 4], [1, 0, 0, 0], [8, 8, 8, 0]]
    assert validation["positions"].tolist() == [3, 4, 10]
    assert validation["targets"].tolist() == [5, 2, 9]
    test = EvaluationSet(split, "test", 2, mask_seen=False).fetch([0, 1, 2], DRAW)
    assert test["items"].tolist() == [[4, 5], [1, 2], [8, 9]]
    assert test["targets"].tolist() == [1, 3, 8]


def test_seen_items_are_the_whole_history(split):
    batch = EvaluationSet(split, "test", 2, mask_seen=True).fetch([2, 1, 0], DRAW)
    seen = list(zip(batch["seen_rows"].tolist(), batch["seen_items"].tolist(), strict=True))
    assert seen == [(0, 8), (0, 8), (0, 8), (0, 9), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5)]
    assert batch["answer_seen"].tolist() == [True, False, True]


@pytest.mark.parametrize("ids", [[], np.array([], np.int64)])
def test_no_samples_are_a_row_of_padding_without_targets(split, ids):
    train = TrainSet(split, 50, num_negatives=2).fetch(ids, DRAW)
    assert train["items"].tolist() == [[0]]
    assert train["targets"].shape == (0,)
    assert train["negatives"].shape == (0, 2)
    evaluation = EvaluationSet(split, "test", 50, mask_seen=True).fetch(ids, DRAW)
    assert evaluation["positions"].shape == (0,)


def test_negatives_do_not_depend_on_the_batch():
    train = TrainSet(split_last(generate_interactions(50, 30, 12, 0)), 10, num_negatives=3)

    def draw_one_by_one(ids):
        return torch.cat([train.fetch([one], DRAW)["negatives"] for one in ids])

    ids = [7, 3, 41, 12]
    together = train.fetch(ids, DRAW)
    assert torch.equal(together["negatives"], draw_one_by_one(ids))
    assert not (together["negatives"] == together["targets"][:, None]).any()
    assert not torch.equal(together["negatives"], train.fetch(ids, Draw(seed=3, epoch=2))["negatives"])


def test_fetching_leaves_global_generators_alone(split):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    TrainSet(split, 50, num_negatives=2).fetch([0, 1], DRAW)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_sets_travel_to_loader_processes(split):
    train = TrainSet(split, 50, num_negatives=2)
    copy = pickle.loads(pickle.dumps(train))
    assert torch.equal(copy.fetch([1, 2], DRAW)["negatives"], train.fetch([1, 2], DRAW)["negatives"])
