"""The best of a whole catalogue, exact: against a plain sort, with ties, in parts of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.recipes.tenrec import top_k
from paceline.recipes.tenrec.top_k import find_best, rank_in_catalogue


def draw(users: int = 7, items: int = 53) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers: many scores are equal, and no order of additions changes them."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(-2, 3, (count, 4), generator=generator).float() for count in (users, items))  # type: ignore[return-value]


@pytest.mark.parametrize("max_scores", [1, 50, 2**27])
@pytest.mark.parametrize("k", [1, 10, 53, 80])
def test_as_a_plain_sort(monkeypatch: pytest.MonkeyPatch, max_scores: int, k: int) -> None:
    monkeypatch.setattr(top_k, "MAX_SCORES", max_scores)
    users, items = draw()
    positions, values = find_best(users, items, k)
    scores = (users @ items.T).numpy()
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert np.array_equal(positions.numpy(), expected)
    assert np.array_equal(values.numpy(), np.take_along_axis(scores, expected, 1))


def test_minus_zero_is_zero() -> None:
    positions, _ = find_best(torch.tensor([[1.0]]), torch.tensor([[-0.0], [0.0], [-0.0]]), 3)
    assert positions.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("max_scores", [1, 50, 2**27])
def test_ranks_count_ties_against_the_answer(monkeypatch: pytest.MonkeyPatch, max_scores: int) -> None:
    monkeypatch.setattr(top_k, "MAX_SCORES", max_scores)
    users, items = draw()
    answers = torch.tensor([0, 5, 52, 17, 17, 30, 1])
    scores = (users @ items.T).numpy()
    expected = [(row >= row[answer]).sum() - 1 for row, answer in zip(scores, answers.tolist(), strict=True)]
    assert rank_in_catalogue(users, items, answers).tolist() == expected


def test_what_is_not_a_number_is_ranked_last() -> None:
    users, items = draw()
    users[2] = float("nan")
    assert rank_in_catalogue(users, items, torch.zeros(7, dtype=torch.int64))[2] == 52


def test_in_fp32_whatever_the_autocast() -> None:
    users, items = (torch.randn(40, 16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    plain = find_best(users, items, 40)
    with torch.autocast("cpu", torch.bfloat16):
        cast = find_best(users, items, 40)
    assert torch.equal(plain[1], cast[1])
