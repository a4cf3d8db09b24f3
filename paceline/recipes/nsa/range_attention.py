"""Attention in which a query sees one stretch of keys: the window, the compressed branch, or a whole document; on the GPU, with memory
linear in length.

out, lse = attend_range(q, k, v, stretch)    # q (B, T, H, D), k and v (B, S, G, D)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from paceline.recipes.nsa.tiles import BUILT_IN, Tiles

LOG2_E = math.log2(math.e)
_ENOUGH_PROGRAMS = 512
"""tiles of keys that keep a GPU busy"""
_MANY_PROGRAMS = 1024
_MOST_SPANS = 8
_PRODUCTS = 64
"""rows of one program that sums products"""


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


def build_stretch(low: torch.Tensor, high: torch.Tensor, num_keys: int) -> Stretch:
    """With the queries of each key, found without asking the device."""
    keys = torch.arange(num_keys, dtype=low.dtype, device=low.device).expand(low.shape[0], -1).contiguous()
    # high[t] > s from `since` on, low[t] > s from `until` on.
    since = torch.searchsorted(high, keys, right=True, out_int32=True)
    until = torch.searchsorted(low, keys, right=True, out_int32=True)
    return Stretch(low, high, since, until)


def attend_range(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, stretch: Stretch, branch: str = "window", tiles: Tiles = BUILT_IN
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each query reads, 0 where it sees nothing, and the logarithm of its softmax's denominator (B, H, T), in base 2; +inf there.

    `branch`: whose tiles the kernels are launched with, window or compressed.
    """
    out, lse = _Range.apply(q, k, v, stretch, branch, tiles)  # type: ignore[no-untyped-call]
    return out, lse


class _Range(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, stretch: Stretch, branch: str, tiles: Tiles
    ) -> Any:
        from paceline.recipes.nsa.range_kernels import nsa_range_forward_kernel

        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, T, H, D = q.shape
        S, G = k.shape[1:3]
        out = torch.empty_like(q)
        lse = q.new_empty((B, H, T), dtype=torch.float32)
        tile = _tile(tiles, f"{branch}_forward", q)
        nsa_range_forward_kernel[(-(-T // tile["BM"]), B * H)](
            *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), stretch.low, stretch.high, out, lse, T, S, LOG2_E / math.sqrt(D), H=H, G=G, D=D, **tile
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.stretch, ctx.branch, ctx.tiles = stretch, branch, tiles
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> Any:
        from paceline.recipes.nsa.range_kernels import nsa_range_key_gradient_kernel, nsa_range_query_gradient_kernel

        q, k, v, out, lse = ctx.saved_tensors
        stretch: Stretch = ctx.stretch
        grad = grad.contiguous()
        B, T, H, D = q.shape
        S, G = k.shape[1:3]
        delta = sum_products(out, grad, by_heads=True)
        dq = torch.empty_like(q)
        tile = _tile(ctx.tiles, f"{ctx.branch}_query_gradient", q)
        factor = 1 / math.sqrt(D)
        nsa_range_query_gradient_kernel[(-(-T // tile["BM"]), B * H)](
            *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), stretch.low, stretch.high, lse, delta,
            *describe((grad, tile["BM"])), dq, T, S, factor * LOG2_E, factor, H=H, G=G, D=D, **tile,
        )  # fmt: skip
        tile = _tile(ctx.tiles, f"{ctx.branch}_key_gradient", q)
        programs = -(-S // tile["BN"]) * B * G
        shares, spans = _share_out(programs, H // G)
        # What several shares of the heads and spans of queries add is kept apart, and summed in their order.
        count = shares * spans
        dk, dv = (x.new_empty((count, *x.shape), dtype=torch.float32 if count > 1 else x.dtype) for x in (k, v))
        nsa_range_key_gradient_kernel[(-(-S // tile["BN"]), B * G, count)](
            *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), stretch.low, stretch.high, stretch.since,
            stretch.until, lse, delta, *describe((grad, tile["BM"])), dk, dv, T, S,
            factor * LOG2_E, factor, H=H, G=G, D=D, SHARE=H // G // shares, SPANS=spans, **tile,
        )  # fmt: skip
        return dq, *(x[0] if count == 1 else x.sum(0).to(q.dtype) for x in (dk, dv)), None, None, None


def describe(*tiled: tuple[torch.Tensor, int]) -> Iterator[Any]:
    """Each (B, T, H, D) as (B · T, H · D), and the tokens of a tile of one head: the GPU copies such tiles by itself."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    for states, rows in tiled:
        yield TensorDescriptor.from_tensor(states.flatten(2).flatten(0, 1), [rows, states.shape[3]])


def sum_products(out: torch.Tensor, grad: torch.Tensor, by_heads: bool) -> torch.Tensor:
    """Σ out · grad over the width, (B, T, H) or, by heads, (B, H, T), in fp32: what softmax takes off every score's gradient."""
    from paceline.recipes.nsa.tile_kernels import nsa_products_kernel

    B, T, H, D = out.shape
    total = out.new_empty((B, H, T) if by_heads else (B, T, H), dtype=torch.float32)
    nsa_products_kernel[(-(-T * H // _PRODUCTS), B)](
        out, grad, total, T, H=H, D=D, BY_HEADS=by_heads, ROWS=_PRODUCTS
    )  # fmt: skip
    return total


def _share_out(programs: int, heads: int) -> tuple[int, int]:
    """Where there are too few tiles of keys, as of compressed ones, each head of a group gets its own program, and each of some spans of
    the queries: in how many shares the heads, and how many spans."""
    if programs >= _ENOUGH_PROGRAMS:
        return 1, 1
    return heads, min(_MOST_SPANS, -(-_MANY_PROGRAMS // (programs * heads)))


def precision_of(dtype: torch.dtype) -> str:
    """How the tensor cores multiply: fp32 as it is, not rounded to 10 bits."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _tile(tiles: Tiles, kernel: str, q: torch.Tensor) -> dict[str, Any]:
    return {**tiles.find(kernel, q.shape[3], q.dtype), "PRECISION": precision_of(q.dtype)}
