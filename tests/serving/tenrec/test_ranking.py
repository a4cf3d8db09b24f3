"""Requests through the ranker: each has the model's own probabilities, whoever shares its batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.serving.acceleration import Proof
from paceline.serving.query import Query
from paceline.serving.scorers import Ranked
from paceline.serving.tenrec import ranking
from paceline.serving.tenrec.ranking import OUTPUTS, TenrecRanker
from paceline.serving.tenrec.stock import Profile, Stock
from tests.serving.tenrec.small import opened, ranker


def requests(*sizes: int) -> list[Ranked]:
    stock = Stock(opened().table, opened().split.item_counts()[1])
    random = np.random.default_rng(0)
    found = []
    for user, size in enumerate(sizes):
        query = Query(top=1, user=user)
        found.append(Ranked(query.having(**Profile(stock).hydrate(query)), random.integers(1, 121, size)))
    return found


@pytest.mark.parametrize("mixer", ["transformer", "fastformer"])
def test_a_batch_gives_each_what_the_model_says_of_it_alone(mixer: str) -> None:
    model, table = ranker(mixer), opened().table
    asked = requests(5, 40, 1)
    found = TenrecRanker(model, table.items.category).rank(asked)
    for request, chances in zip(asked, found, strict=True):
        assert chances.shape == (len(request.items), len(OUTPUTS))
        items, query = torch.from_numpy(request.items)[None], request.query
        history = torch.from_numpy(query.history)[None]
        categories = torch.from_numpy(table.items.category.astype(np.int64))
        batch = {
            "history": history,
            "history_categories": categories[history],
            "genders": torch.tensor([query.attributes["gender"]]),
            "ages": torch.tensor([query.attributes["age"]]),
            "candidates": items,
            "categories": categories[items],
        }
        with torch.no_grad():
            np.testing.assert_allclose(chances, model(batch)[0].sigmoid(), rtol=1e-5, atol=1e-6)


def test_a_program_of_one_size_answers_requests_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = ranker(), []

    def accelerate(eager, batches, precision, seconds):
        def program(batch):
            shapes.append(tuple(batch["candidates"].shape))
            with torch.no_grad():
                return eager(batch)

        return program, Proof(precision, True, 0.0, 1e-4, 1.0, 2.0, 1.0, 0.0, "")

    monkeypatch.setattr(ranking, "accelerate", accelerate)
    asked = requests(5, 40, 16)
    served = TenrecRanker(model, opened().table.items.category)
    expected = served.rank(asked)
    proof = served.accelerate(asked, 16, "fp32")
    assert proof.speed_up == 2
    for one, other in zip(served.rank(asked), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert set(shapes) == {(1, 16)}
    assert len(shapes) == 1 + 3 + 1


def test_who_does_not_know_an_attribute_says_nothing_of_it() -> None:
    query = Query(top=1, history=np.array([3]))
    (chances,) = TenrecRanker(ranker(), opened().table.items.category).rank([Ranked(query, np.array([1, 2]))])
    assert np.isfinite(chances).all()
