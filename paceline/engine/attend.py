"""Attention itself, by three kernels that recipes share: written out, torch's SDPA, flex attention.

    mixed = KERNELS["sdpa"](query, key, value, is_causal=True, dropout=0.1)

Which of SDPA's backends runs is not decided here (attention.py). Shapes: B rows, H heads, L positions, D width. A causal mask lets a
position look at itself and at what came before it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Kernel(Protocol):
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        is_causal: bool = False,
        mask: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """(B, H, L, D). `mask` is added to the scores, or as booleans says what may be looked at."""
        ...


def attend_eagerly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Written out, softmax in fp32."""
    scores_BHLL = (query @ key.transpose(-2, -1)).float() / math.sqrt(query.shape[-1])
    if is_causal:
        scores_BHLL = hide_future(scores_BHLL)
    if mask is not None:
        scores_BHLL = scores_BHLL.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores_BHLL + mask
    weights_BHLL = F.dropout(scores_BHLL.softmax(-1), dropout)
    return weights_BHLL.to(value.dtype) @ value


def attend_by_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """torch's fused kernels."""
    width = query.shape[-1]
    wide = sdpa_width(width, query.device.type)
    query, key, value = (_widen(state, wide) for state in (query, key, value))
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=1 / math.sqrt(width)
    )
    return mixed[..., :width]


def attend_by_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """torch's flex attention, which skips the blocks above the diagonal. It knows no dropout, and no backward on a CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    assert not dropout, "flex attention has no dropout"
    assert mask is None, "a mask for flex attention is a function"
    width = query.shape[-1]
    query, key, value = (_widen(state, flex_width(width)) for state in (query, key, value))
    blocks = _causal_blocks(query.shape[-2], key.shape[-2], query.device) if is_causal else None
    # Uncompiled, as on a CPU, it builds the whole matrix of scores: good for tests only.
    attend = _compiled_flex() if query.is_cuda else cast("Callable[..., Tensor]", flex_attention)
    mixed = attend(query, key, value, block_mask=blocks, scale=1 / math.sqrt(width))
    return mixed[..., :width]


KERNELS: dict[str, Kernel] = {"eager": attend_eagerly, "sdpa": attend_by_sdpa, "flex": attend_by_flex}


def sdpa_width(width: int, device_type: str) -> int:
    """What a head of this width is widened to: CUDA's fused kernels want multiples of 8, and zeros change no product."""
    return -(-width // 8) * 8 if device_type == "cuda" else width


def flex_width(width: int) -> int:
    """The same for flex attention, whose generated kernels want 16 and up, and take every power of two."""
    return max(16, 1 << (width - 1).bit_length())


def hide_future(scores_BHLL: Tensor) -> Tensor:
    """Scores of what comes later become minus infinity."""
    queries, keys = scores_BHLL.shape[-2:]
    future_LL = torch.ones(queries, keys, dtype=torch.bool, device=scores_BHLL.device).triu(1)
    return scores_BHLL.masked_fill(future_LL, -math.inf)


def _widen(states_BHLD: Tensor, width: int) -> Tensor:
    missing = width - states_BHLD.shape[-1]
    return F.pad(states_BHLD, (0, missing)) if missing else states_BHLD


@functools.cache
def _causal_blocks(queries: int, keys: int, device: torch.device) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    def looks_back(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    return create_block_mask(looks_back, None, None, queries, keys, device=device)


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # Lengths are the same all through training, and all through evaluation: a kernel for each, none for lengths in general.
    return torch.compile(flex_attention, dynamic=False)
