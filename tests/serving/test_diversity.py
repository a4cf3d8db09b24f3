"""Diversity against a slow, plain one; and what it must never do."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.serving.candidates import Candidates
from paceline.serving.diversity import Diversity
from paceline.serving.query import Query
from paceline.serving.stages import SkippedError
from tests.serving import plain

QUERY = Query(top=1)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_the_plain_one_is(seed: int) -> None:
    _, candidates, _ = plain.draw(seed)
    random = np.random.default_rng(seed)
    for column in ("category", "author"):
        decay, floor = random.choice((0.0, 0.5, 0.9, 1.0)), random.choice((0.0, 0.2, 1.0))
        scores = Diversity(column, decay, floor).score(QUERY, candidates)["score"]
        expected = plain.diversity(candidates, column, decay, floor)
        np.testing.assert_allclose(scores, expected, rtol=2e-6, atol=1e-7)


def test_the_next_of_a_category_falls_behind() -> None:
    candidates = Candidates.build([1, 2, 3, 4], [1.0, 0.9, 0.8, 0.3], category=[5, 5, 5, 6])
    scores = Diversity("category", decay=0.5, floor=0.2).score(QUERY, candidates)["score"]
    np.testing.assert_allclose(scores, [1.0, 0.9 * 0.6, 0.8 * 0.4, 0.3], rtol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_rises_and_a_group_keeps_its_order(seed: int) -> None:
    _, candidates, _ = plain.draw(seed)
    scores = Diversity("category", 0.6, 0.1).score(QUERY, candidates)["score"]
    assert (scores <= candidates.score).all()
    for group in np.unique(candidates.columns["category"]):
        rows = np.flatnonzero(candidates.columns["category"] == group)
        before = rows[np.argsort(-candidates.score[rows], kind="stable")]
        assert (np.diff(scores[before]) <= 1e-6).all()


def test_without_its_column_it_is_skipped() -> None:
    with pytest.raises(SkippedError, match="author"):
        Diversity("author").score(QUERY, Candidates.build([1, 2]))


@pytest.mark.parametrize("wrong", [{"decay": 1.5}, {"floor": -0.1}, {"decay": float("nan")}])
def test_shares_are_shares(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        Diversity(**wrong)
