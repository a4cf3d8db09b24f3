"""Which selection blocks a query looks at, on the GPU: scores by a kernel for some thousands of queries at a time, so that memory stays
linear in length, and the highest of them by another.

blocks_BTGn = select(query_BTHD, keys_BNGD, logsum_BHT, frame, pattern)    # as selection.py chooses them
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

from paceline.recipes.nsa.kernels.fast_frame import fast
from paceline.recipes.nsa.kernels.launching import LOG2_E, describe, precision_of
from paceline.recipes.nsa.kernels.tiles import Tile, decode_tiles, find_shared
from paceline.recipes.nsa.pattern import Frame, Pattern

_MOST_SCORES = 2**24
"""of a chunk: 64 MiB, twice"""
_SLOTS = 512
"""that one program scores; so several programs share a tile of queries"""
_AT_ONCE = 1024
"""scores that a warp keeps in registers to find the highest of"""


def select(query_BTHD: Tensor, keys_BNGD: Tensor, logsum_BHT: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
    """(B, T, G, n): numbers of the blocks in the query's document, rising; -1 behind them where there are fewer."""
    laid_out = fast(frame)
    sees = (laid_out.compressed.low, laid_out.compressed.high, laid_out.position_BT, laid_out.after_BT)
    given = (each.contiguous() for each in (query_BTHD, keys_BNGD, logsum_BHT))
    blocks: Tensor = _select(*given, *sees, pattern.sizes, laid_out.tiles.code)
    return blocks


class _Places(NamedTuple):
    """Of each query, (B, T)."""

    low: Tensor
    """the first slot that it sees"""
    high: Tensor
    """the slot after the last one"""
    position: Tensor
    """in its document"""
    after: Tensor
    """the token after its document"""


@custom_op("paceline_nsa::select", mutates_args=())
def _select(
    query: Tensor, keys: Tensor, logsum: Tensor, low: Tensor, high: Tensor, position: Tensor, after: Tensor,
    sizes: list[int], tiles: str,
) -> Tensor:  # fmt: skip
    pattern, places = Pattern(*sizes), _Places(low, high, position, after)
    rows, length = query.shape[:2]
    at_once = max(64, _MOST_SCORES // (rows * keys.shape[2] * pattern.num_selection(length)))
    blocks = _new_blocks(query, keys, pattern)
    tile = decode_tiles(tiles).find("select", query.shape[3], query.dtype, shared=find_shared(query.device))
    for begin in range(0, length, at_once):
        count = min(at_once, length - begin)
        scores = _score(query, keys, logsum, places, pattern, tile, begin, count)
        _choose(scores, blocks, position, pattern, begin)
    return blocks


@_select.register_fake
def _(
    query: Tensor, keys: Tensor, logsum: Tensor, low: Tensor, high: Tensor, position: Tensor, after: Tensor,
    sizes: list[int], tiles: str,
) -> Tensor:  # fmt: skip
    return _new_blocks(query, keys, Pattern(*sizes))


def _new_blocks(query: Tensor, keys: Tensor, pattern: Pattern) -> Tensor:
    return query.new_empty((*query.shape[:2], keys.shape[2], pattern.selected), dtype=torch.int64)


def _score(
    query: Tensor, keys: Tensor, logsum: Tensor, places: _Places, pattern: Pattern, tile: Tile, begin: int, count: int
) -> Tensor:
    """(a, B, G, Q, J): what a block's score is summed up from; what lies after a query is anything.

    J: as many as the last of these queries can have before it, in a document that fills the row; so early queries cost less.
    """
    from paceline.recipes.nsa.kernels.score_kernels import nsa_score_kernel

    rows, length, heads, width = query.shape
    num_slots, groups = keys.shape[1:3]
    num_selection = pattern.num_selection(begin + count)
    per_block, per_selection = pattern.block // pattern.stride, pattern.selection_block // pattern.stride
    scores = query.new_empty((pattern.reach, rows, groups, count, num_selection), dtype=torch.float32)
    tile = {**tile, "BN": max(tile["BN"], per_selection)}
    nsa_score_kernel[(-(-num_selection * per_selection // _SLOTS), -(-count // tile["BM"]), rows * groups)](
        *describe((query, tile["BM"]), (keys, tile["BN"])), logsum, *places, scores, begin, length, num_slots,
        count, num_selection, LOG2_E / math.sqrt(width),
        H=heads, G=groups, D=width, SELECTION=pattern.selection_block, PER_BLOCK=per_block, PER_SELECTION=per_selection,
        REACH=pattern.reach, SLOTS=_SLOTS, PRECISION=precision_of(query.dtype), **tile,
    )  # fmt: skip
    return scores


def _choose(scores: Tensor, blocks: Tensor, position: Tensor, pattern: Pattern, begin: int) -> None:
    """Of the queries from `begin` on, into their place in blocks_BTGn."""
    from paceline.recipes.nsa.kernels.score_kernels import nsa_score_highest_kernel

    reach, rows, groups, count, num_selection = scores.shape
    padded = max(64, 1 << (num_selection - 1).bit_length())
    queries = max(1, _AT_ONCE // padded)
    nsa_score_highest_kernel[(-(-count // queries), rows * groups)](
        scores, position, blocks, begin, blocks.shape[1], count, num_selection,
        G=groups, N=pattern.selected, SELECTION=pattern.selection_block, INITIAL=pattern.initial, LOCAL=pattern.local,
        REACH=reach, BQ=queries, JP=padded, NP=1 << (pattern.selected - 1).bit_length(), num_warps=1,
    )  # fmt: skip
