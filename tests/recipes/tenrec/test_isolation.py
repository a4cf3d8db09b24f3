"""Each row's mean of the context and of its own entry: what a softmax over both says, filled up to whole tiles or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.recipes.tenrec.isolation import blend

ROWS, WIDTH = 37, 8


def write_out(to_context: Tensor, to_self: Tensor, context: Tensor, own: Tensor) -> Tensor:
    """The same, row by row, over the sequence of the context and the row itself."""
    weights = torch.cat((to_context, to_self), -1).softmax(-1)
    entries = torch.cat((context[:, :, None].expand(-1, -1, ROWS, -1, -1), own[..., None, :]), -2)
    return (weights[..., None] * entries).sum(-2)


def inputs(num_context: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(num_context)
    shapes = ((ROWS, num_context), (ROWS, 1), (num_context, WIDTH), (ROWS, WIDTH))
    found = [torch.randn(2, 3, *shape, generator=random, dtype=torch.float64) for shape in shapes]
    found[0][0, ..., 1:] = -torch.inf  # a history that is not there
    return [each.float().requires_grad_() for each in found]


@pytest.mark.parametrize("num_context", [1, 2, 11, 14, 15, 16, 31])
def test_a_blend_is_the_softmax_over_context_and_oneself(num_context: int) -> None:
    given, other = inputs(num_context), inputs(num_context)
    found, expected = blend(*given), write_out(*other)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, another in zip(given, other, strict=True):
        torch.testing.assert_close(one.grad, another.grad, rtol=1e-4, atol=1e-5)


def test_at_the_size_of_serving_no_row_depends_on_the_others() -> None:
    to_context, to_self, context, own = (each.detach() for each in inputs(11))
    random = torch.Generator().manual_seed(0)
    many = torch.randint(ROWS, (1000,), generator=random)
    found = blend(to_context[:, :, many], to_self[:, :, many], context, own[:, :, many])
    order = torch.randperm(1000, generator=random)
    there = many[order]
    moved = blend(to_context[:, :, there], to_self[:, :, there], context, own[:, :, there])
    assert torch.equal(moved, found[:, :, order])
    assert torch.equal(found, blend(to_context, to_self, context, own)[:, :, many])
