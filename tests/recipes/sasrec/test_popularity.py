import numpy as np
import pytest
import torch

from paceline.recipes.sasrec.generate import generate_interactions
from paceline.recipes.sasrec.metrics import rank_answers
from paceline.recipes.sasrec.popularity import rank_by_popularity
from paceline.recipes.sasrec.samples import EvaluationSet
from paceline.recipes.sasrec.split import split_last
from paceline.workload import Draw


@pytest.mark.parametrize("mask_seen", [False, True])
@pytest.mark.parametrize("name", ["validation", "test"])
def test_ranks_are_those_of_a_model_that_scores_by_count(name, mask_seen):
    split = split_last(generate_interactions(200, 60, 12, 0))
    batch = EvaluationSet(split, name, 50, mask_seen).fetch(range(len(split.held_out)), Draw(0, 0))
    scores = torch.from_numpy(split.train_counts()).float().expand(len(split.held_out), -1)
    seen = (batch.get("seen_rows"), batch.get("seen_items"), batch.get("answer_seen"))
    expected = rank_answers(scores, batch["targets"], *seen)
    assert np.array_equal(rank_by_popularity(split, name, mask_seen), expected.numpy())
