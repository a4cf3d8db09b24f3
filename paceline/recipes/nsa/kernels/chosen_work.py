"""Who chose which block, turned round: for each block its queries, cut into pieces of work that one program of the GPU can take.

Found on the device, without asking it anything: what is not known here is how many pieces there are, and the programs read that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PIECE = 1024
"""queries; block 0 is chosen by all of its document's, and one program alone would be waited for"""
_QUERIES = 32
"""whose choice one program reads"""
_AT_ONCE = 1024
"""words, or bins, that a program sums up at a time, at the most"""


@dataclass(frozen=True)
class Work:
    """The pieces of some queries Q of all rows and groups X."""

    entry: Tensor
    """(X, Q · n): the places t · n + i of all blocks in chosen_XQn, one block after another, each block's in the order of the sequence, and
    behind the last one anything; in 64 bits where addresses worked out from them need those"""
    pieces: Tensor
    """(6, room) int32: which of X; the block's first key; from and to, in `entry`; which sum over its block's queries it gives, -1 where it
    is all of it; of how many pieces the block is, at its first one, 0 elsewhere"""
    count: Tensor
    """(1) int64: its lower half tells how many pieces there are"""
    programs: int
    """as many as there are pieces, where documents are long; each program takes more where there are more"""
    sums_room: int
    """there are no more sums than this"""


def plan_work(chosen: Tensor, owner: Tensor, t0: int, block: int, reach: int) -> Work:
    """From the first keys (X, Q, n) of the blocks of queries from `t0` on, -1 for none, and the first key (B, T) of the block that each key
    belongs to. `reach`: how far apart in memory what is found by `entry` may lie."""
    from paceline.recipes.nsa.kernels.work_kernels import (
        nsa_chosen_count_kernel,
        nsa_chosen_cut_kernel,
        nsa_chosen_mark_kernel,
        nsa_chosen_place_kernel,
        nsa_chosen_sum_up_kernel,
    )

    X, Q, n = chosen.shape
    rows, T = owner.shape
    entry, pieces, total = new_work(chosen, T, reach)
    J, C = -(-T // block), -(-Q // 32)
    bits, before = chosen.new_zeros((X, J, C)), chosen.new_empty((X, J, C))
    size, begin = chosen.new_empty((X, J)), chosen.new_empty((X, J))
    cuts, upto = (chosen.new_empty((X, J), dtype=torch.int64) for _ in range(2))
    by_queries, of_entries = (
        (-(-Q // _QUERIES), X),
        {"N": n, "NP": 1 << (n - 1).bit_length(), "L": block, "ROWS": _QUERIES},
    )
    by_bins, of_pieces = (J, X), {"G": X // rows, "PIECE": PIECE, "L": block}
    words, bins = (min(_AT_ONCE, max(32, 1 << (count - 1).bit_length())) for count in (C, J))

    nsa_chosen_mark_kernel[by_queries](chosen, bits, Q, J, C, **of_entries)
    nsa_chosen_count_kernel[by_bins](bits, owner, before, size, cuts, t0, Q, T, J, C, WORDS=words, **of_pieces)
    nsa_chosen_sum_up_kernel[(X,)](size, cuts, begin, upto, total, J, BINS=bins)
    nsa_chosen_place_kernel[by_queries](chosen, bits, before, begin, entry, Q, J, C, **of_entries)
    nsa_chosen_cut_kernel[by_bins](
        bits, owner, before, size, begin, upto, pieces, t0, Q, T, J, C, pieces.shape[1], **of_pieces
    )
    return build_work(entry, pieces, total, T, block)


def count_planned(rows_and_groups: int, length: int, block: int) -> int:
    """Bytes that planning takes for one query of each of X: a bit of each block, and how many come before it."""
    return rows_and_groups * -(-length // block) * 2 // 8


def new_work(chosen: Tensor, length: int, reach: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for `entry`, `pieces` and `count`."""
    X, Q, n = chosen.shape
    entry = chosen.new_empty((X, Q * n), dtype=torch.int64 if reach >= 2**31 else torch.int32)
    pieces = chosen.new_empty((6, X * min(length, Q * n) + _count_cuts(entry)), dtype=torch.int32)
    return entry, pieces, chosen.new_empty(1, dtype=torch.int64)


def build_work(entry: Tensor, pieces: Tensor, count: Tensor, length: int, block: int) -> Work:
    """From what was kept of it: the rest follows from how large that is."""
    cuts = _count_cuts(entry)
    return Work(entry, pieces, count, len(entry) * -(-length // block) + cuts, 2 * cuts)


def _count_cuts(entry: Tensor) -> int:
    """By so many there are more pieces than blocks, at the most."""
    X, entries = entry.shape
    return X * -(-entries // PIECE)
