import math

import numpy as np
import pytest

from paceline.recipes.rank_metrics import compute_metrics, metric_names, rank_answers


def test_the_documented_example():
    values = compute_metrics(np.array([0, 4, 12]), 100, [10, 1])
    at_10 = {"hr_10": 2 / 3, "ndcg_10": 0.46228427, "mrr_10": 0.4}
    assert values == pytest.approx(at_10 | {"hr_1": 1 / 3, "ndcg_1": 1 / 3, "mrr_1": 1 / 3})
    assert list(values) == metric_names([10, 1]) == ["hr_10", "ndcg_10", "mrr_10", "hr_1", "ndcg_1", "mrr_1"]


def test_an_answer_that_was_not_ranked_misses_at_any_cut_off():
    assert not any(compute_metrics(np.array([4]), 4, [1, 4, 100]).values())
    assert compute_metrics(np.array([3]), 4, [100])["hr_100"] == 1


def test_no_samples_are_not_a_number():
    assert all(math.isnan(value) for value in compute_metrics(np.array([], np.int64), 9, [10]).values())


def test_ranks_count_ties_and_what_is_not_a_number_against_the_answer():
    broken = [[0.0, math.nan, -1.0], [math.nan, 5.0, 4.0]]
    scores = np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 1.0], *broken, [1.0, -math.inf, 2.0]])
    assert rank_answers(scores, np.array([2, 0, 0, 0, 2])).tolist() == [1, 2, 1, 2, 0]
