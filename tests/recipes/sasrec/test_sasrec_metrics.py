import math

import numpy as np
import pytest
import torch

from paceline.recipes.sasrec.metrics import compute_metrics, metric_names, rank_answers


def brute_force(scores, answer, seen):
    """The definition, item by item; items from 1."""
    if answer in seen:
        return len(scores)
    mine = scores[answer - 1]
    others = [item for item in range(1, len(scores) + 1) if item != answer and item not in seen]
    return sum(1 for item in others if not scores[item - 1] < mine)


def test_ranks_agree_with_the_definition():
    random = np.random.default_rng(0)
    scores = random.integers(0, 12, (200, 30)).astype(np.float32)
    scores[random.random((200, 30)) < 0.05] = np.nan
    scores[random.random((200, 30)) < 0.05] = np.inf
    scores[random.random((200, 30)) < 0.05] = -np.inf
    answers = random.integers(1, 31, 200)
    seen = [set(random.integers(1, 31, random.integers(0, 9)).tolist()) for _ in range(200)]
    pairs = torch.tensor([(row, item) for row, items in enumerate(seen) for item in items])
    among = torch.tensor([answer in items for answer, items in zip(answers, seen, strict=True)])

    plain = rank_answers(torch.from_numpy(scores), torch.from_numpy(answers))
    masked = rank_answers(torch.from_numpy(scores), torch.from_numpy(answers), pairs[:, 0], pairs[:, 1], among)
    assert plain.tolist() == [brute_force(row, answer, ()) for row, answer in zip(scores, answers, strict=True)]
    assert masked.tolist() == [brute_force(*case) for case in zip(scores, answers, seen, strict=True)]
    assert plain.dtype == torch.int64


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -math.inf])
def test_a_constant_or_broken_model_scores_nothing(value):
    ranks = rank_answers(torch.full((5, 100), value), torch.tensor([1, 2, 50, 99, 100]))
    assert ranks.tolist() == [99] * 5
    assert compute_metrics(ranks.numpy(), 100, [10]) == {"hr_10": 0.0, "ndcg_10": 0.0}


def test_boosting_what_was_seen_gains_nothing_when_seen_items_are_masked():
    """Otherwise a repeated answer would be the only seen item left, and first."""
    scores = torch.tensor([[9.0, 8.0, 1.0, 0.0]])
    ranks = rank_answers(scores, torch.tensor([2]), torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([True]))
    assert compute_metrics(ranks.numpy(), 4, [1, 4]) == {"hr_1": 0.0, "ndcg_1": 0.0, "hr_4": 0.0, "ndcg_4": 0.0}


def test_the_documented_example():
    values = compute_metrics(np.array([0, 4, 12]), 100, [10, 1])
    assert values == pytest.approx({"hr_10": 2 / 3, "ndcg_10": 0.46228427, "hr_1": 1 / 3, "ndcg_1": 1 / 3})
    assert list(values) == metric_names([10, 1])


def test_random_scores_score_chance():
    scores = torch.randn(20_000, 50, generator=torch.Generator().manual_seed(0))
    answers = torch.randint(1, 51, (20_000,), generator=torch.Generator().manual_seed(1))
    hit_rate = compute_metrics(rank_answers(scores, answers).numpy(), 50, [10])["hr_10"]
    assert hit_rate == pytest.approx(0.2, abs=0.015)  # 5 standard deviations


def test_no_samples_are_not_a_number():
    assert all(math.isnan(value) for value in compute_metrics(np.array([], np.int64), 9, [10]).values())
