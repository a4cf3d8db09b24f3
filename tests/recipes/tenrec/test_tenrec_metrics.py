import math

import numpy as np
import pytest

from paceline.recipes.tenrec import metrics as metrics_module
from paceline.recipes.tenrec.metrics import (
    ACTION_METRICS,
    fit_rows,
    list_metric_names,
    measure_action,
    measure_lists,
)


def test_equals_the_written_out_sums(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_module, "_PART", 7)
    rng = np.random.default_rng(0)
    logits = rng.normal(-2, 3, 500)
    labels = (rng.random(500) < 0.2).astype(np.uint8)
    chances = 1 / (1 + np.exp(-logits))
    found = measure_action(logits, labels, threads=2)
    assert tuple(found) == ACTION_METRICS
    assert found["log_loss"] == pytest.approx(-np.log(np.where(labels == 1, chances, 1 - chances)).mean(), rel=1e-12)
    assert found["calibration"] == pytest.approx(chances.sum() / labels.sum(), rel=1e-12)
    bins = np.floor(np.clip(logits, -12.25, 12.25) * 2)
    gaps = [abs(chances[bins == place].sum() - labels[bins == place].sum()) for place in np.unique(bins)]
    assert found["calibration_error"] == pytest.approx(sum(gaps) / 500, rel=1e-9)


def test_large_log_odds_lose_no_digits():
    found = measure_action(np.array([-800.0, 800.0, 40.0]), np.array([1, 0, 1]))
    assert found["log_loss"] == pytest.approx((800 + 800 + math.exp(-40)) / 3, rel=1e-15)
    assert measure_action(np.array([np.inf, -np.inf]), np.array([1, 0]))["log_loss"] == 0
    assert measure_action(np.array([np.inf, -np.inf]), np.array([0, 1]))["log_loss"] == math.inf


def test_threads_cannot_be_seen_in_the_digits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_module, "_PART", 64)
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=5000).astype(np.float32), rng.random(5000) < 0.1
    one, many = fit_rows(logits, labels, 1), fit_rows(logits, labels, 8)
    assert one.loss == many.loss
    assert np.array_equal(one.predicted, many.predicted)
    assert np.array_equal(one.happened, many.happened)


def test_calibrated_predictions_have_a_small_error_and_false_ones_a_large_one():
    rng = np.random.default_rng(2)
    logits = rng.normal(-4, 1, 200_000)
    labels = rng.random(200_000) < 1 / (1 + np.exp(-logits))
    right, doubled = measure_action(logits, labels), measure_action(logits + math.log(2), labels)
    assert right["calibration"] == pytest.approx(1, abs=0.05)
    assert doubled["calibration"] == pytest.approx(1.96, abs=0.1)
    assert doubled["calibration_error"] > 5 * right["calibration_error"]


def test_what_is_undefined_is_not_a_number():
    nothing = measure_action(np.array([]), np.array([]))
    assert all(math.isnan(value) for value in nothing.values())
    never = measure_action(np.array([-1.0, -2.0]), np.array([0, 0]))
    assert math.isnan(never["auc"])
    assert math.isnan(never["calibration"])
    assert never["log_loss"] > 0
    broken = measure_action(np.array([-1.0, math.nan, 1.0]), np.array([0, 1, 1]))
    assert all(math.isnan(value) for value in broken.values())


def test_lists_by_the_place_of_their_answer():
    found = measure_lists(np.array([0, 4, 12, 100]), 100, [10, 1])
    assert list(found) == list_metric_names([10, 1]) == ["hr_10", "ndcg_10", "hr_1", "ndcg_1", "mrr"]
    assert found["hr_10"] == 2 / 4
    assert found["mrr"] == pytest.approx((1 + 1 / 5 + 1 / 13 + 0) / 4)
    assert all(math.isnan(value) for value in measure_lists(np.array([], np.int64), 9, [10]).values())
