"""Attention to one stretch of keys a query, by the formulas, with scores whole in memory and in float64; for packed rows of every branch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.recipes.nsa.kernels.range_attention import Stretch, Words, build_stretch
from tests.recipes.nsa.attentions import make_positions

BRANCHES = ("window", "past", "words", "compressed")


@dataclass(frozen=True)
class Range:
    """Queries, keys and values, what they see, and the gradient of what they read; `expected`: the gradients of all three."""

    states: list[Tensor]
    stretch: Stretch
    words: Words | None
    upstream: Tensor
    expected: tuple[Tensor, ...]


def draw_range(
    branch: str,
    rows: list[tuple[int, ...]],
    heads: int,
    groups: int,
    width: int,
    dtype: torch.dtype,
    device: str = "cpu",
) -> Range:
    stretch = _find_stretch(branch, rows, device)
    (B, T), S = stretch.low.shape, stretch.since.shape[1]
    random = torch.Generator().manual_seed(5)
    s = torch.arange(S, device=device)
    sees = ((s >= stretch.low[:, :, None]) & (s < stretch.high[:, :, None]))[:, None].expand(-1, groups, -1, -1)
    words = None
    if branch == "words":
        words = Words(torch.randint(0, 2**31, (B, groups, T), generator=random).int().to(device), 64)
        of_block = (s - stretch.low[:, :, None].long()).clamp(min=0)[:, None] // 64
        sees = sees & ((words.words[..., None] >> of_block) & 1).bool()
    shapes = [(B, T, heads, width), *[(B, S, groups, width)] * 2, (B, T, heads, width)]
    *states, upstream = (torch.randn(shape, generator=random).to(device, dtype) for shape in shapes)
    q, k, v = (each.double().requires_grad_() for each in states)
    each_k, each_v = (each.repeat_interleave(heads // groups, 2) for each in (k, v))
    sees = sees.repeat_interleave(heads // groups, 1)
    scores = torch.einsum("bthd,bshd->bhts", q, each_k) / width**0.5
    # One that sees no key reads nothing.
    p = torch.softmax(scores.masked_fill(~sees, -1e9), -1) * sees
    expected = torch.autograd.grad(torch.einsum("bhts,bshd->bthd", p, each_v), [q, k, v], upstream.double())
    return Range([each.requires_grad_() for each in states], stretch, words, upstream, expected)


def _find_stretch(branch: str, rows: list[tuple[int, ...]], device: str) -> Stretch:
    """The window of 100 tokens, the whole past, or compressed keys, of which there is one every 16 tokens."""
    positions = make_positions(*rows).to(device)
    length = positions.shape[1]
    t = torch.arange(length, dtype=torch.int32, device=device).expand(len(rows), -1)
    low, high, num_keys = t - positions.int(), t + 1, length
    if branch == "window":
        low = torch.maximum(low, t - 100 + 1)
    if branch == "compressed":
        low, num_keys = low // 16, length // 16
        high = torch.maximum(low, (high - 16).clamp(min=0) // 16)
    return build_stretch(low.contiguous(), high.contiguous(), num_keys)
