"""Who chose which block, turned round: for each block its queries, cut into pieces of work that one program of the GPU can take.

Found on the device, without asking it anything: what is not known here is how many pieces there are, and the programs read that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PIECE = 1024
"""queries; block 0 is chosen by all of its document's, and one program alone would be waited for"""


@dataclass(frozen=True)
class Work:
    """The pieces of some queries Q of all rows and groups X."""

    entry: Tensor
    """(X, Q · n): the places t · n + i of all blocks in chosen_XQn, one block after another, each block's in the order of the sequence; in 64
    bits where addresses worked out from them need those"""
    pieces: Tensor
    """(6, room) int32: which of X; the block's first key; from and to, in `entry`; which sum over its block's queries it gives, -1 where it
    is all of it; of how many pieces the block is, at its first one, 0 elsewhere"""
    count: Tensor
    """(1) int64: its lower half tells how many pieces there are"""
    programs: int
    """as many as there are pieces, where documents are long; each program takes more where there are more"""
    sums_room: int
    """there are no more sums than this"""


def plan_work(chosen: Tensor, length: int, block: int, reach: int) -> Work:
    """From the first keys of each query's blocks (X, Q, n), -1 for none, in rows of so many keys. `reach`: how far apart in memory what is
    found by `entry` may lie."""
    from paceline.recipes.nsa.work_kernels import nsa_chosen_count_kernel, nsa_chosen_cut_kernel

    X, Q, n = chosen.shape
    entries, device = Q * n, chosen.device
    # One number for row, group and block, so that one sort does for all. Stable: each block's queries stay in their order. What was not
    # chosen comes last, as if it were one more block.
    base = torch.arange(X, dtype=torch.int32, device=device)[:, None] * (length + 1)
    key, order = (torch.where(chosen < 0, length, chosen).view(X, entries) + base).view(-1).sort(stable=True)
    entry, pieces, total = new_work(chosen, length, reach)
    torch.sub(order.view(X, entries), torch.arange(X, device=device)[:, None] * entries, out=entry)
    blocks = torch.arange(X * (length + 1) + 1, dtype=torch.int32, device=device)
    edges = torch.searchsorted(key, blocks, out_int32=True)
    count = torch.empty(X * (length + 1), dtype=torch.int64, device=device)
    grid = (-(-len(count) // 256),)
    nsa_chosen_count_kernel[grid](edges, count, len(count), length, PIECE=PIECE, SIZE=256, num_warps=2)
    upto = count.cumsum(0)
    nsa_chosen_cut_kernel[grid](
        edges, upto, pieces, len(count), length, entries, pieces.shape[1], PIECE=PIECE, SIZE=256, num_warps=2
    )
    # The last one alone: all of them, for every slice of the queries, would grow with the square of the length.
    total.copy_(upto[-1:])
    return build_work(entry, pieces, total, length, block)


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
