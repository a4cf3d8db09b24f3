"""The loss by hand, and what it does not depend on."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.recipes.csa.contrast import contrast


def test_by_hand() -> None:
    speech, text = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.6, 0.8], [0.0, 1.0]])
    loss, weight = contrast(torch.stack((speech, text), 1), torch.tensor([math.log(2.0)]))
    scores = [[1.2, 0.0], [1.6, 2.0]]
    rows = sum(math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(scores))
    columns = sum(math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(zip(*scores, strict=True)))
    assert weight.item() == 2
    assert loss.item() == pytest.approx((rows + columns) / 2, rel=1e-6)


def test_neither_the_order_nor_the_side_matters() -> None:
    rows = torch.nn.functional.normalize(torch.randn(7, 2, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    scale = torch.tensor([2.0])
    expected, _ = contrast(rows, scale)
    torch.testing.assert_close(contrast(rows.flip(0), scale)[0], expected)
    torch.testing.assert_close(contrast(rows.flip(1), scale)[0], expected)
