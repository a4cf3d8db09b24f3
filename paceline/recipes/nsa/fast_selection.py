"""Which selection blocks a query looks at, on the GPU: scores by a kernel for some thousands of queries at a time, so that memory stays
linear in length, and the highest of them by one sort of whole numbers that has no ties.

blocks_BTGn = select(query_BTHD, keys_BNGD, logsum_BHT, frame, pattern)    # as selection.py chooses them
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.recipes.nsa.fast_frame import FastFrame, fast
from paceline.recipes.nsa.pattern import Frame, Pattern
from paceline.recipes.nsa.range_attention import LOG2_E, precision_of
from paceline.recipes.nsa.selection import choose_blocks

_MOST_SCORES = 2**23
"""of a chunk: 32 MiB, and a few times that while they are sorted"""


def select(query_BTHD: Tensor, keys_BNGD: Tensor, logsum_BHT: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
    """(B, T, G, n): numbers of the blocks in the query's document, rising; -1 behind them where there are fewer."""
    rows, length = query_BTHD.shape[:2]
    num_selection = pattern.num_selection(length)
    at_once = max(64, _MOST_SCORES // (rows * keys_BNGD.shape[2] * num_selection))
    query, keys = query_BTHD.contiguous(), keys_BNGD.contiguous()
    return torch.cat(
        [
            choose_blocks(
                _score(query, keys, logsum_BHT, fast(frame), pattern, begin, min(at_once, length - begin)),
                frame.positions_BT[:, begin : begin + at_once],
                pattern,
                find_highest,
            )
            for begin in range(0, length, at_once)
        ],
        dim=1,
    )


def _score(
    query: Tensor, keys: Tensor, logsum: Tensor, frame: FastFrame, pattern: Pattern, begin: int, count: int
) -> Tensor:
    """(B, G, Q, J): the score of each block; what lies after a query is left at 0, and nobody chooses it.

    J: as many as the last of these queries can have before it, in a document that fills the row; so early queries cost less.
    """
    from paceline.recipes.nsa.score_kernels import nsa_score_kernel

    rows, length, heads, width = query.shape
    num_slots, groups = keys.shape[1:3]
    num_selection = pattern.num_selection(begin + count)
    scores = query.new_zeros((rows, groups, count, num_selection), dtype=torch.float32)
    is_wide = query.dtype == torch.float32
    tile = 32 if is_wide else 64
    nsa_score_kernel[(-(-count // tile), rows * groups)](
        query, keys, logsum, frame.compressed.low, frame.compressed.high, frame.block_low_BT, frame.block_high_BT,
        frame.block_slot_BT, scores, begin, length, num_slots, count, num_selection, LOG2_E / math.sqrt(width),
        H=heads, G=groups, D=width, PER_BLOCK=pattern.block // pattern.stride,
        PER_SELECTION=pattern.selection_block // pattern.stride, BM=tile, BJ=32, PRECISION=precision_of(query.dtype),
        num_warps=4,
    )  # fmt: skip
    return scores


def find_highest(ranked: Tensor, count: int) -> Tensor:
    """As selection.py finds them: every score as one whole number, so that no two are equal and none has to be sorted.

    A score is not negative, so that its bits, read as a whole number, have its order, and -inf lies below all; below the bits comes the
    block's number, backwards.
    """
    num_selection = ranked.shape[-1]
    number_J = torch.arange(num_selection, device=ranked.device)
    whole = (ranked.view(torch.int32).long() << 32) | (num_selection - number_J)
    return whole.topk(count, dim=-1, sorted=False).indices
