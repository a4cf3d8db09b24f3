"""Attention in which a query sees one stretch of keys: the window, the compressed branch, or a whole document, of which it may choose some
blocks; on the GPU, with memory linear in length.

out, logsum = attend_range(q, k, v, stretch)    # q (B, T, H, D), k and v (B, S, G, D)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from paceline.recipes.nsa.launching import LOG2_E, describe, precision_of
from paceline.recipes.nsa.tiles import BUILT_IN, Tiles

_ENOUGH_PROGRAMS = 512
"""tiles of keys that keep a GPU busy"""
_MANY_PROGRAMS = 1024
_MOST_SPANS = 8


@dataclass(frozen=True)
class Stretch:
    """Which keys a query sees, and which queries see a key; both ends never go back along a row. All int32, on the device."""

    low: torch.Tensor
    """(B, T): the first key that query t sees"""
    high: torch.Tensor
    """(B, T): the key after the last one; not above `low`: none"""
    since: torch.Tensor
    """(B, S): the first query that may see key s"""
    until: torch.Tensor
    """(B, S): the query after the last one"""


@dataclass(frozen=True)
class Words:
    """Which blocks of its stretch, which must be all of its document up to itself, a query sees. int32, on the device."""

    words: torch.Tensor
    """(B, G, T): bit j is set where it sees block j of its document"""
    block: int
    """keys of a block: a power of two"""


def build_stretch(low: torch.Tensor, high: torch.Tensor, num_keys: int) -> Stretch:
    """With the queries of each key, found without asking the device."""
    keys = torch.arange(num_keys, dtype=low.dtype, device=low.device).expand(low.shape[0], -1).contiguous()
    # high[t] > s from `since` on, low[t] > s from `until` on.
    since = torch.searchsorted(high, keys, right=True, out_int32=True)
    until = torch.searchsorted(low, keys, right=True, out_int32=True)
    return Stretch(low, high, since, until)


def attend_range(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    stretch: Stretch,
    branch: str = "window",
    tiles: Tiles = BUILT_IN,
    words: Words | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each query reads, 0 where it sees nothing, and the logarithm of its softmax's denominator (B, H, T); -inf there.

    `branch`: whose tiles the kernels are launched with: window, compressed or selected_past.
    """
    out, logsum = _Range.apply(q, k, v, stretch, branch, tiles, words)  # type: ignore[no-untyped-call]
    return out, logsum


class _Range(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        stretch: Stretch,
        branch: str,
        tiles: Tiles,
        words: Words | None,
    ) -> Any:
        from paceline.recipes.nsa.range_kernels import nsa_range_forward_kernel

        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, T, H, D = q.shape
        S, G = k.shape[1:3]
        out = torch.empty_like(q)
        lse, logsum = (q.new_empty((B, H, T), dtype=torch.float32) for _ in range(2))
        tile = _tile(tiles, f"{branch}_forward", q, words)
        nsa_range_forward_kernel[_grid(T, tile["BM"], B * H, words)](
            *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), stretch.low, stretch.high, words and words.words,
            out, lse, logsum, T, S, LOG2_E / math.sqrt(D), H=H, G=G, D=D, SELECTION=words.block if words else 0, **tile,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.stretch, ctx.words, ctx.branch, ctx.tiles = stretch, words, branch, tiles
        ctx.mark_non_differentiable(logsum)
        # Or torch would fill zeros to stand for the gradient that it has not.
        ctx.set_materialize_grads(False)
        return out, logsum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: None) -> Any:
        from paceline.recipes.nsa.range_kernels import nsa_range_key_gradient_kernel, nsa_range_query_gradient_kernel

        q, k, v, out, lse = ctx.saved_tensors
        stretch: Stretch = ctx.stretch
        words: Words | None = ctx.words
        grad = grad.contiguous()
        B, T, H, D = q.shape
        S, G = k.shape[1:3]
        dq, delta = torch.empty_like(q), torch.empty_like(lse)
        tile = _tile(ctx.tiles, f"{ctx.branch}_query_gradient", q, words)
        factor = 1 / math.sqrt(D)
        sizes = {"H": H, "G": G, "D": D, "SELECTION": words.block if words else 0}
        nsa_range_query_gradient_kernel[_grid(T, tile["BM"], B * H, words)](
            *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), stretch.low, stretch.high, words and words.words,
            out, lse, *describe((grad, tile["BM"])), delta, dq, T, S, factor * LOG2_E, factor, **sizes, **tile,
        )  # fmt: skip
        tile = _tile(ctx.tiles, f"{ctx.branch}_key_gradient", q, words)
        shares, spans = _share_out(-(-S // tile["BN"]) * B * G, H // G)
        # What several shares of the heads and spans of queries add is kept apart, and summed in their order.
        count = shares * spans
        grads = k.new_empty((2, count, *k.shape), dtype=torch.float32 if count > 1 else k.dtype)
        nsa_range_key_gradient_kernel[(*_grid(S, tile["BN"], B * G, words), count)](
            *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), stretch.low, stretch.high, stretch.since,
            stretch.until, words and words.words, lse, delta, *describe((grad, tile["BM"])), *grads, T, S,
            factor * LOG2_E, factor, SHARE=H // G // shares, SPANS=spans, **sizes, **tile,
        )  # fmt: skip
        dk, dv = grads[:, 0] if count == 1 else grads.sum(1).to(k.dtype)
        return dq, dk, dv, None, None, None, None


def _grid(count: int, size: int, rows: int, words: Words | None) -> tuple[int, int]:
    """Tiles, and rows with their heads or groups; with words the other way round: so the kernels read it."""
    tiles = -(-count // size)
    return (rows, tiles) if words else (tiles, rows)


def _share_out(programs: int, heads: int) -> tuple[int, int]:
    """Where there are too few tiles of keys, as of compressed ones, each head of a group gets its own program, and each of some spans of
    the queries: in how many shares the heads, and how many spans."""
    if programs >= _ENOUGH_PROGRAMS:
        return 1, 1
    return heads, min(_MOST_SPANS, -(-_MANY_PROGRAMS // (programs * heads)))


def _tile(tiles: Tiles, kernel: str, q: torch.Tensor, words: Words | None) -> dict[str, Any]:
    tile = tiles.find(kernel, q.shape[3], q.dtype)
    # Tiles of keys longer than blocks would have keys of three.
    keys = min(tile["BN"], words.block) if words else tile["BN"]
    return {**tile, "BN": keys, "PRECISION": precision_of(q.dtype)}
