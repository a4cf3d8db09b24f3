"""Three kernels, one attention: against a reference in float64, with masks; causal ones are tested with the recipe that has them."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.engine.attend import KERNELS, attend_by_flex, attend_by_sdpa, attend_eagerly, flex_width, sdpa_width

SHAPES = {"query": (2, 2, 7, 6), "key": (2, 2, 5, 6), "value": (2, 2, 5, 6)}


def reference(query, key, value, bias):
    scores = query.double() @ key.double().transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias.double()
    return (scores.softmax(-1) @ value.double()).float()


def make_states():
    random = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=random) for shape in SHAPES.values()], random


@pytest.mark.parametrize("kernel", [attend_eagerly, attend_by_sdpa])
def test_masks_add_to_the_scores_or_say_what_may_be_looked_at(kernel):
    states, random = make_states()
    bias = torch.randn(1, 1, 7, 5, generator=random)
    torch.testing.assert_close(kernel(*states, mask=bias), reference(*states, bias), rtol=1e-4, atol=1e-5)
    visible = torch.rand(1, 1, 7, 5, generator=random) > 0.4
    visible[..., 0] = True
    hidden = torch.zeros(1, 1, 7, 5).masked_fill(~visible, -math.inf)
    torch.testing.assert_close(kernel(*states, mask=visible), reference(*states, hidden), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_without_a_mask_everything_is_looked_at():
    states, _ = make_states()
    expected = reference(*states, torch.zeros(1, 1, 7, 5))
    for kernel in KERNELS.values():
        torch.testing.assert_close(kernel(*states), expected, rtol=1e-4, atol=1e-5)


def test_flex_refuses_what_it_cannot_do():
    states, _ = make_states()
    for wrong in ({"dropout": 0.1}, {"mask": torch.zeros(1, 1, 7, 5)}):
        with pytest.raises(AssertionError, match="flex attention"):
            attend_by_flex(*states, **wrong)


def test_widths():
    assert [sdpa_width(width, "cuda") for width in (1, 8, 25, 64)] == [8, 8, 32, 64]
    assert sdpa_width(25, "cpu") == 25
    assert [flex_width(width) for width in (1, 16, 25, 64, 65)] == [16, 16, 32, 64, 128]
