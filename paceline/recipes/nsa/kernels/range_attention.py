"""Attention in which a query sees one stretch of keys: the window, the compressed branch, or a whole document, of which it may choose some
blocks; on the GPU, with memory linear in length.

out, logsum = attend_range(q, k, v, stretch)    # q (B, T, H, D), k and v (B, S, G, D)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from paceline.errors import UsageError
from paceline.recipes.nsa.kernels.hopper import describe_columns, has_hopper
from paceline.recipes.nsa.kernels.launching import LOG2_E, MOST_ROWS, describe, precision_of
from paceline.recipes.nsa.kernels.tiles import BUILT_IN, Tile, Tiles, decode_tiles, find_shared

_ENOUGH_PROGRAMS = 512
"""tiles of keys that keep a GPU busy"""
_MANY_PROGRAMS = 1024
_MOST_SPANS = 8


@dataclass(frozen=True)
class Stretch:
    """Which keys a query sees, and which queries see a key; both ends never go back along a row. All int32, on the device."""

    low: Tensor
    """(B, T): the first key that query t sees"""
    high: Tensor
    """(B, T): the key after the last one; not above `low`: none"""
    since: Tensor
    """(B, S): the first query that may see key s"""
    until: Tensor
    """(B, S): the query after the last one"""


@dataclass(frozen=True)
class Words:
    """Which blocks of its stretch, which must be all of its document up to itself, a query sees. int32, on the device."""

    words: Tensor
    """(B, G, T): bit j is set where it sees block j of its document"""
    block: int
    """keys of a block: a power of two"""


def build_stretch(low: Tensor, high: Tensor, num_keys: int) -> Stretch:
    """With the queries of each key, found without asking the device."""
    keys = torch.arange(num_keys, dtype=low.dtype, device=low.device).expand(low.shape[0], -1).contiguous()
    # high[t] > s from `since` on, low[t] > s from `until` on.
    since = torch.searchsorted(high, keys, right=True, out_int32=True)
    until = torch.searchsorted(low, keys, right=True, out_int32=True)
    return Stretch(low, high, since, until)


def attend_range(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stretch: Stretch,
    branch: str = "window",
    tiles: Tiles = BUILT_IN,
    words: Words | None = None,
) -> tuple[Tensor, Tensor]:
    """What each query reads, 0 where it sees nothing, and the logarithm of its softmax's denominator (B, H, T); -inf there.

    `branch`: whose tiles the kernels are launched with: window, compressed or selected_past.
    """
    sees = (stretch.low, stretch.high, stretch.since, stretch.until)
    chosen = (None, 0) if words is None else (words.words, words.block)
    out, _, logsum = _attend(q.contiguous(), k.contiguous(), v.contiguous(), *sees, *chosen, branch, tiles.code)
    return out, logsum


@custom_op("paceline_nsa::range", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, low: Tensor, high: Tensor, since: Tensor, until: Tensor, words: Tensor | None,
    block: int, branch: str, tiles: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What is read, and the logarithm of the denominator twice: as the gradients want it, and as it is told."""
    from paceline.recipes.nsa.kernels.range_kernels import nsa_range_forward_kernel

    B, T, H, D = q.shape
    S, G = k.shape[1:3]
    out, lse, logsum = _new_outputs(q)
    chosen = _words(words, block)
    tile = _tile(decode_tiles(tiles), f"{branch}_forward", q, chosen)
    nsa_range_forward_kernel[_grid(T, tile["BM"], B * H, chosen)](
        *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), low, high, words,
        out, lse, logsum, T, S, LOG2_E / math.sqrt(D), H=H, G=G, D=D, SELECTION=block, **tile,
    )  # fmt: skip
    return out, lse, logsum


@_attend.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _new_outputs(q)


def _new_outputs(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    B, T, H, _ = q.shape
    lse, logsum = (q.new_empty((B, H, T), dtype=torch.float32) for _ in range(2))
    return torch.empty_like(q), lse, logsum


@custom_op("paceline_nsa::range_gradient", mutates_args=())
def _differentiate(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, low: Tensor, high: Tensor, since: Tensor, until: Tensor,
    words: Tensor | None, out: Tensor, lse: Tensor, block: int, branch: str, tiles: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of q; and of k and v, (2, parts, B, S, G, D), whose parts are to be summed."""
    from paceline.recipes.nsa.kernels.range_kernels import nsa_range_query_gradient_kernel

    B, T, H, D = q.shape
    S, G = k.shape[1:3]
    chosen = _words(words, block)
    key_tile, shares, spans = _plan_keys(q, k, chosen, branch, tiles)
    dq, grads = _new_gradients(q, k, shares * spans)
    delta = torch.empty_like(lse)
    tile = _tile(decode_tiles(tiles), f"{branch}_query_gradient", q, chosen)
    factor = 1 / math.sqrt(D)
    sizes = {"H": H, "G": G, "D": D, "SELECTION": block}
    nsa_range_query_gradient_kernel[_grid(T, tile["BM"], B * H, chosen)](
        *describe((q, tile["BM"]), (k, tile["BN"]), (v, tile["BN"])), low, high, words,
        out, lse, *describe((grad, tile["BM"])), delta, dq, T, S, factor * LOG2_E, factor, **sizes, **tile,
    )  # fmt: skip
    tile = key_tile
    kernel, (described_q, described_k, described_v, described_grad) = _choose_key_kernel(tile, q, k, v, grad)
    kernel[(*_grid(S, tile["BN"], B * G, chosen), shares * spans)](
        described_q, described_k, described_v, low, high, since, until, words, lse, delta, described_grad, *grads, T, S,
        factor * LOG2_E, factor, SHARE=H // G // shares, SPANS=spans, **sizes, **tile,
    )  # fmt: skip
    return dq, grads


def _choose_key_kernel(tile: Tile, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Any, Iterable[Any]]:
    """That of any GPU, or where the tile says how many the copy engine is ahead, the one for Hopper; with the tensors as it wants them."""
    if "NBUF" in tile:
        from paceline.recipes.nsa.kernels.key_gradient_kernels import nsa_range_copied_key_gradient_kernel

        return nsa_range_copied_key_gradient_kernel, describe_columns(tile["BM"], q, k, v, grad)
    from paceline.recipes.nsa.kernels.range_kernels import nsa_range_key_gradient_kernel

    rows = (tile["BM"], tile["BN"], tile["BN"], tile["BM"])
    return nsa_range_key_gradient_kernel, describe(*zip((q, k, v, grad), rows, strict=True))


@_differentiate.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, low: Tensor, high: Tensor, since: Tensor, until: Tensor,
    words: Tensor | None, out: Tensor, lse: Tensor, block: int, branch: str, tiles: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _, shares, spans = _plan_keys(q, k, _words(words, block), branch, tiles)
    return _new_gradients(q, k, shares * spans)


def _new_gradients(q: Tensor, k: Tensor, count: int) -> tuple[Tensor, Tensor]:
    # What several shares of the heads and spans of queries add is kept apart, and summed in their order.
    dtype = torch.float32 if count > 1 else k.dtype
    return torch.empty_like(q), k.new_empty((2, count, *k.shape), dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.block, ctx.branch, ctx.tiles = inputs
    out, lse, logsum = output
    ctx.save_for_backward(*tensors, out, lse)
    ctx.mark_non_differentiable(lse, logsum)
    # Or torch would fill zeros to stand for the gradients that they have not.
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor, *_: None) -> Any:
    dq, grads = _differentiate(grad.contiguous(), *ctx.saved_tensors, ctx.block, ctx.branch, ctx.tiles)
    # Here and not in the operator, so that a compiler adds, casts and turns in one go.
    dk, dv = grads[:, 0] if grads.shape[1] == 1 else grads.sum(1).to(dq.dtype)
    return dq, dk, dv, *[None] * 8


_attend.register_autograd(_backward, setup_context=_keep)


def _words(words: Tensor | None, block: int) -> Words | None:
    return None if words is None else Words(words, block)


def _plan_keys(q: Tensor, k: Tensor, words: Words | None, branch: str, tiles: str) -> tuple[dict[str, Any], int, int]:
    """The tile of their gradients, in how many shares the heads, and how many spans of queries."""
    tile = _tile(decode_tiles(tiles), f"{branch}_key_gradient", q, words)
    (B, S, G, _), H = k.shape, q.shape[2]
    return tile, *_share_out(-(-S // tile["BN"]) * B * G, H // G)


def _grid(count: int, size: int, rows: int, words: Words | None) -> tuple[int, int]:
    """Tiles, and rows with their heads or groups; with words the other way round: so the kernels read it."""
    # Before CUDA says it in its own words. Trainings were asked at their start (paths.py); all layers come by here, with more than other kernels have.
    if words is None and rows > MOST_ROWS:
        what = f"{rows:,} rows × heads at once, and the kernels of sparse attention take {MOST_ROWS:,} on a GPU"
        raise UsageError(
            what, "rows and heads of the queries", "compute fewer rows at a time: train.micro_batch, evaluate.block"
        )
    tiles = -(-count // size)
    return (rows, tiles) if words else (tiles, rows)


def _share_out(programs: int, heads: int) -> tuple[int, int]:
    """Where there are too few tiles of keys, as of compressed ones, each head of a group gets its own program, and each of some spans of
    the queries: in how many shares the heads, and how many spans."""
    if programs >= _ENOUGH_PROGRAMS:
        return 1, 1
    return heads, min(_MOST_SPANS, -(-_MANY_PROGRAMS // (programs * heads)))


def _tile(tiles: Tiles, kernel: str, q: Tensor, words: Words | None) -> dict[str, Any]:
    shared, hopper = find_shared(q.device), has_hopper(q.device)
    find = partial(tiles.find, kernel, q.shape[3], q.dtype, shared=shared, hopper=hopper)
    tile = find() if words is None else find(block=words.block)
    return {**tile} | ({} if "NBUF" in tile else {"PRECISION": precision_of(q.dtype)})
