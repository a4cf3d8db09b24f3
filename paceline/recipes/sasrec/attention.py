"""Causal attention: each position looks at itself and at what came before it.

Padding stands at the end, after everything real, so the causal mask hides it too. Shapes: B rows, L positions, H heads, D width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.frame import Frame
from paceline.recipes.sasrec.rotary import rotate


class CausalAttention(nn.Module):
    """Attention by one of three kernels: eager, sdpa or flex."""

    def __init__(self, config: Model, kernel: str) -> None:
        super().__init__()
        self._heads = config.heads
        self._kernel = {"eager": attend_eagerly, "sdpa": attend_by_sdpa, "flex": attend_by_flex}[kernel]
        self._dropout = config.attention_dropout
        self.project_in = nn.Linear(config.width, 3 * config.width)
        self.project_out = nn.Linear(config.width, config.width)

    def forward(self, hidden_TD: Tensor, frame: Frame) -> Tensor:
        query, key, value = split_heads(frame.pad(self.project_in(hidden_TD)), self._heads)
        if frame.rotation is not None:
            query, key = rotate(query, frame.rotation), rotate(key, frame.rotation)
        mixed_BHLD = self._kernel(query, key, value, self._dropout if self.training else 0.0)
        projected: Tensor = self.project_out(frame.pack(join_heads(mixed_BHLD)))
        return projected


def split_heads(projected_BLD: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B, H, L, D) each."""
    rows, length, _ = projected_BLD.shape
    query, key, value = projected_BLD.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    return query, key, value


def join_heads(mixed_BHLD: Tensor) -> Tensor:
    return mixed_BHLD.transpose(1, 2).flatten(2)


def hide_future(scores_BHLL: Tensor) -> Tensor:
    """Scores of what comes later become minus infinity."""
    length = scores_BHLL.shape[-1]
    future_LL = torch.ones(length, length, dtype=torch.bool, device=scores_BHLL.device).triu(1)
    return scores_BHLL.masked_fill(future_LL, -math.inf)


def attend_eagerly(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Written out, softmax in fp32."""
    scores_BHLL = (query @ key.transpose(-2, -1)).float() / math.sqrt(query.shape[-1])
    weights_BHLL = F.dropout(hide_future(scores_BHLL).softmax(-1), dropout)
    return weights_BHLL.to(value.dtype) @ value


def attend_by_sdpa(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """torch's fused kernels. Those of CUDA want head widths that are multiples of 8; zeros change no product."""
    width = query.shape[-1]
    if query.is_cuda:
        query, key, value = (_widen(state, -(-width // 8) * 8) for state in (query, key, value))
    mixed = F.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, is_causal=True, scale=1 / math.sqrt(width)
    )
    return mixed[..., :width]


def attend_by_flex(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """torch's flex attention, which skips the blocks above the diagonal. It knows no dropout, and no backward on a CPU.

    Its generated kernels want head widths of 16 and up, and take every power of two.
    """
    assert not dropout, "flex attention has no dropout"
    width = query.shape[-1]
    wide = max(16, 1 << (width - 1).bit_length())
    query, key, value = (_widen(state, wide) for state in (query, key, value))
    mask = _causal_blocks(query.shape[-2], query.device)
    # Uncompiled, as on a CPU, it builds the whole matrix of scores: good for tests only.
    attend = _compiled_flex() if query.is_cuda else cast("Callable[..., Tensor]", flex_attention)
    mixed = attend(query, key, value, block_mask=mask, scale=1 / math.sqrt(width))
    return mixed[..., :width]


def _widen(states_BHLD: Tensor, width: int) -> Tensor:
    missing = width - states_BHLD.shape[-1]
    return F.pad(states_BHLD, (0, missing)) if missing else states_BHLD


@functools.cache
def _causal_blocks(length: int, device: torch.device) -> BlockMask:
    def looks_back(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    return create_block_mask(looks_back, None, None, length, length, device=device)


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    # Lengths are the same all through training, and all through evaluation: a kernel for each, none for lengths in general.
    return torch.compile(flex_attention, dynamic=False)
