"""The torch path against the reference in float64, with the selected blocks given: outputs and all gradients."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paceline.recipes.nsa import reference, torch_path
from paceline.recipes.nsa.attention import SparseAttention, reference_sizes
from paceline.recipes.nsa.pattern import Pattern
from tests.recipes.nsa.attentions import (
    SMALL,
    build,
    frame_of,
    make_hidden,
    make_positions,
    relative_error,
)

LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}

CASES = {
    "one token": ((1, 1, 16), SMALL, [(1,)]),
    "shorter than a block": ((4, 2, 16), SMALL, [(7,)]),
    "a block, no more": ((2, 1, 16), SMALL, [(8,)]),
    "group 1": ((3, 3, 16), SMALL, [(97,)]),
    "group 2, packed": ((4, 2, 16), SMALL, [(50, 1, 46), (3, 90, 4)]),
    "group 6, packed": ((12, 2, 16), SMALL, [(64, 33)]),
    "group 16": ((16, 1, 16), SMALL, [(81,)]),
    "width 64": ((6, 1, 64), SMALL, [(40, 31)]),
    "one stride per block": ((2, 1, 16), replace(SMALL, block=4), [(75,)]),
    "the paper's sizes": ((2, 1, 8), replace(Pattern(), selected=4, window=100), [(120, 301)]),
}


def by_reference(attention: SparseAttention, hidden: Tensor, positions: Tensor, upstream: Tensor):
    """Output, blocks and gradients in float64."""
    hidden = hidden.clone().requires_grad_()
    starts = (torch.arange(positions.shape[1]) - positions).tolist()
    weights = dict(attention.named_parameters())
    rows = [reference.attend(row, weights, starts[b], reference_sizes(attention.shape)) for b, row in enumerate(hidden)]
    mixed, blocks = (torch.stack(parts) for parts in zip(*rows, strict=True))
    gradients = torch.autograd.grad(mixed, [hidden, *weights.values()], upstream, allow_unused=True)
    return mixed.detach(), blocks, dict(zip(["hidden", *weights], gradients, strict=True))


def check(case: tuple, dtype: torch.dtype, seed: int = 0, gate: str = "sigmoid") -> None:
    (heads, groups, width), pattern, rows = case
    positions = make_positions(*rows)
    attention = build(heads, groups, width, pattern, gate, seed=seed)
    hidden = make_hidden(positions, seed=seed + 1)
    upstream = make_hidden(positions, seed=seed + 2)
    expected, blocks, gradients = by_reference(attention, hidden, positions, upstream)

    # As a run has it: weights in fp32, products of bf16 under autocast.
    stored = torch.float64 if dtype == torch.float64 else torch.float32
    attention = attention.to(stored)
    given = hidden.to(stored).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = attention(given, frame_of(positions, attention, stored), blocks_BTGn=blocks)
    found.backward(upstream.to(found.dtype))
    assert found.dtype == dtype
    errors = {"output": relative_error(found, expected)}
    for name, parameter in [("hidden", given), *attention.named_parameters()]:
        if gradients[name] is None:  # a row so short that nothing is compressed
            assert parameter.grad is None or not parameter.grad.any(), name
        elif not gradients[name].any():  # of a single token nobody's query matters: nothing but rounding is left
            errors[name] = (parameter.grad.norm() / gradients["project_out.weight"].norm()).item()
        else:
            errors[name] = relative_error(parameter.grad, gradients[name])
    # One by one: what is not a number is never the largest.
    assert all(error <= LIMITS[dtype] for error in errors.values()), errors


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_all_gradients(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_softmax_gates(dtype: torch.dtype) -> None:
    check(CASES["group 2, packed"], dtype, gate="softmax")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("group", [1, 2, 6, 16])
def test_random_shapes(group: int, dtype: torch.dtype) -> None:
    draw = random.Random(group)
    for seed in range(4):
        rows = []
        length = draw.choice((512, draw.randint(1, 512)))
        for _ in range(draw.choice((1, 2))):
            cuts = sorted(draw.sample(range(1, length), min(length - 1, draw.randint(0, 4))))
            rows.append(tuple(b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)))
        stride = draw.choice((4, 8, 16))
        pattern = Pattern(2 * stride, stride, 4 * stride, draw.randint(3, 8), draw.choice((1, 33, 512)))
        groups = draw.choice((1, 2))
        check(((group * groups, groups, draw.choice((16, 64))), pattern, rows), dtype, seed)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = make_positions((150, 1, 49), (200,))
    attention, hidden = build(), make_hidden(positions)

    def run() -> tuple[Tensor, ...]:
        attention.zero_grad()
        mixed = attention(hidden, frame_of(positions, attention))
        mixed.square().sum().backward()
        return mixed.detach(), *(parameter.grad.clone() for parameter in attention.parameters())

    whole = run()
    monkeypatch.setattr(torch_path, "MOST_SCORES", 2000)
    assert len(torch_path.split_queries(200, 2 * 4 * 50)) > 5
    for found, expected in zip(run(), whole, strict=True):
        assert relative_error(found, expected) < 1e-12


def test_memory_is_that_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor that is kept for backward has a score for every pair of tokens."""
    monkeypatch.setattr(torch_path, "MOST_SCORES", 2**14)
    positions = make_positions((1024,))
    attention, largest = build().float(), 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention(make_hidden(positions).float(), frame_of(positions, attention, torch.float32))
    assert largest < 1024 * 1024 / 4
