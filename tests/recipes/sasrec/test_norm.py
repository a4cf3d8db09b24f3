"""What Norm promises where there is no GPU; tests/gpu/test_norm_kernels.py has the kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from paceline.recipes.sasrec.launches import plan_parts
from paceline.recipes.sasrec.norm import Norm, fused_available


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def build_pair(width: int) -> tuple[Norm, nn.LayerNorm]:
    """Ours and torch's, with the same weights, far from where training starts."""
    ours, theirs = Norm(width), nn.LayerNorm(width)
    state = {"weight": draw(width, 1).flatten(), "bias": draw(1, 1, width).flatten()}
    ours.load_state_dict(state)
    theirs.load_state_dict(state)
    return ours, theirs


@pytest.mark.parametrize("shape", [(7, 50), (3, 4, 64), (0, 8), (2, 1)])
def test_on_the_cpu_it_is_layer_norm(shape):
    results = []
    for norm in build_pair(shape[-1]):
        x = draw(*shape).requires_grad_()
        y = norm(x)
        y.backward(draw(*shape).flip(-1))
        assert norm.weight.grad is not None
        assert norm.bias.grad is not None
        results.append((y.detach(), x.grad, norm.weight.grad, norm.bias.grad))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("keeps_fp32", [False, True])
def test_on_the_cpu_autocast_changes_nothing_of_layer_norm(keeps_fp32):
    x = draw(5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = Norm(16, keeps_fp32)(x), nn.LayerNorm(16)(x)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


def test_the_state_is_that_of_layer_norm():
    ours, theirs = Norm(50).state_dict(), nn.LayerNorm(50).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_the_kernels_do_not_take():
    assert not fused_available(torch.zeros(3, 8))
    assert not fused_available(torch.zeros(0, 8))


def test_another_width_is_refused():
    with pytest.raises(RuntimeError, match="normalized_shape"):
        Norm(8)(torch.zeros(3, 16))


def test_triton_is_imported_only_by_who_uses_it():
    code = "import sys; import paceline.recipes.sasrec.norm; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_parts_are_few_and_even():
    for tokens in (1, 7, 32, 33, 25_599, 25_600, 1_000_000):
        for held in (2, 16, 32, 64):
            tiles = -(-tokens // held)
            parts = plan_parts(tiles, 512)
            assert 1 <= parts <= 512
            rounds = [len(range(part, tiles, parts)) for part in range(parts)]
            assert sum(rounds) == tiles
            assert max(rounds) - min(rounds) <= 1
            assert max(rounds) == -(-tiles // 512), "no more rounds than the most parts would take"
    assert plan_parts(25_600 // 32, 512) == 400
