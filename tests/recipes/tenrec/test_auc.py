import math

import numpy as np
import pytest

from paceline.recipes.tenrec import auc as auc_module
from paceline.recipes.tenrec.auc import auc, fits_float32, order_keys

KINDS = ("apart", "tied", "constant", "infinite", "sorted", "zeros", "near")


def plain_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Every pair of a positive and a negative."""
    positives, negatives = scores[labels == 1], scores[labels == 0]
    won = tied = 0
    for score in positives:
        won += int((score > negatives).sum())
        tied += int((score == negatives).sum())
    return (2 * won + tied) / (2 * len(positives) * len(negatives))


def draw_scores(rng: np.random.Generator, kind: str, size: int) -> np.ndarray:
    scores = rng.normal(size=size)
    if kind == "tied":
        return np.round(scores, 1)
    if kind == "constant":
        return np.full(size, 0.25)
    if kind == "infinite":
        return np.where(rng.random(size) < 0.3, rng.choice([-np.inf, np.inf], size), scores)
    if kind == "zeros":
        return rng.choice([-0.0, 0.0, 1e-45], size)
    if kind == "near":
        return np.float64(1) + rng.integers(-40, 40, size) * 2.0**-24
    return np.sort(scores) if kind == "sorted" else scores


@pytest.mark.parametrize("sparse", [4, 4096])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_counting_all_pairs(monkeypatch: pytest.MonkeyPatch, kind: str, dtype: type, sparse: int):
    # Parts and buckets small enough for several of each; `sparse` decides who is counted in a table, who is sorted.
    monkeypatch.setattr(auc_module, "_PART", 16)
    monkeypatch.setattr(auc_module, "_FULL", 8)
    monkeypatch.setattr(auc_module, "_SAMPLE", 64)
    monkeypatch.setattr(auc_module, "_SPARSE", sparse)
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(40):
        size = int(rng.integers(2, 200))
        scores = draw_scores(rng, kind, size).astype(dtype)
        labels = (rng.random(size) < rng.choice([0.02, 0.3, 0.5, 0.98])).astype(np.uint8)
        labels[rng.permutation(size)[:2]] = 0, 1
        before = scores.copy()
        assert auc(scores, labels, threads=2) == plain_auc(scores, labels)
        assert np.array_equal(scores, before)


def test_the_documented_example():
    assert auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1])) == 0.875


def test_many_scores_are_counted_without_rounding():
    scores = np.arange(3_000_000, dtype=np.float32)
    labels = np.ones(len(scores), bool)
    labels[1] = False
    # One pair is lost of 2,999,999.
    assert auc(scores, labels) == 2_999_998 / 2_999_999


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1], []])
def test_undefined_with_one_side_only(labels: list[int]):
    assert math.isnan(auc(np.zeros(len(labels)), np.array(labels, np.uint8)))


@pytest.mark.parametrize("place", [0, 1])
def test_a_score_that_is_not_a_number_has_no_place(place: int):
    scores = np.array([0.5, 0.5, 0.1])
    scores[place] = np.nan
    assert math.isnan(auc(scores, np.array([0, 1, 0])))


def test_float64_is_kept_where_float32_would_tie():
    scores = np.array([1.0, 1.0 + 1e-12])
    assert auc(scores, np.array([0, 1])) == 1
    assert auc(np.array([1.0, 1e300]), np.array([0, 1])) == 1
    assert fits_float32(np.array([0.5, np.inf, -2.0]))
    assert not fits_float32(scores)


@pytest.mark.parametrize("is_narrow", [True, False])
def test_keys_have_the_order_of_the_scores(is_narrow: bool):
    scores = np.array([-np.inf, -3e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 0.1, 1.5, np.inf])
    keys = order_keys(scores.astype(np.float32), is_narrow)
    assert keys.dtype == (np.uint32 if is_narrow else np.uint64)
    assert np.array_equal(np.sign(np.diff(keys.astype(object))), [1, 1, 1, 1, 0, 1, 1, 1, 1])


def test_sides_of_different_width_are_compared_exactly():
    # The negative fits float32, the positive does not.
    assert auc(np.array([1.0, 1.0 + 1e-12, 0.5]), np.array([0, 1, 0])) == 1
