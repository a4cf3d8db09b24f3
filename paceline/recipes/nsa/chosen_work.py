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
    """The pieces of some rows and groups X."""

    entry: Tensor
    """(X, T · n): the places t · n + i of all blocks in chosen_XTn, one block after another, each block's in the order of the sequence; in 64
    bits where addresses worked out from them need those"""
    pieces: Tensor
    """(6, room) int32: which of X; the block's first key; from and to, in `entry`; which sum over its block's queries it gives, -1 where it
    is all of it; of how many pieces the block is, at its first one, 0 elsewhere"""
    upto: Tensor
    """(X · (T + 1)) int64: its last number's lower half tells how many pieces there are"""
    programs: int
    """as many as there are pieces, where documents are long; each program takes more where there are more"""
    sums_room: int
    """there are no more sums than this"""


def plan_work(chosen: Tensor, block: int, reach: int, piece: int = PIECE) -> Work:
    """From the first keys of each query's blocks (X, T, n), -1 for none. `reach`: how far apart in memory what is found by `entry` may lie."""
    from paceline.recipes.nsa.work_kernels import nsa_chosen_count_kernel, nsa_chosen_cut_kernel

    X, T, n = chosen.shape
    entries, device = T * n, chosen.device
    # One number for row, group and block, so that one sort does for all. Stable: each block's queries stay in their order. What was not
    # chosen comes last, as if it were one more block.
    base = torch.arange(X, dtype=torch.int32, device=device)[:, None] * (T + 1)
    key, order = (torch.where(chosen < 0, T, chosen).view(X, entries) + base).view(-1).sort(stable=True)
    entry, pieces, upto = new_work(chosen, reach, piece)
    torch.sub(order.view(X, entries), torch.arange(X, device=device)[:, None] * entries, out=entry)
    blocks = torch.arange(X * (T + 1) + 1, dtype=torch.int32, device=device)
    edges = torch.searchsorted(key, blocks, out_int32=True)
    count = torch.empty(X * (T + 1), dtype=torch.int64, device=device)
    grid = (-(-len(count) // 256),)
    nsa_chosen_count_kernel[grid](edges, count, len(count), T, PIECE=piece, SIZE=256, num_warps=2)
    torch.cumsum(count, 0, out=upto)
    nsa_chosen_cut_kernel[grid](
        edges, upto, pieces, len(count), T, n, pieces.shape[1], PIECE=piece, SIZE=256, num_warps=2
    )
    return build_work(entry, pieces, upto, block)


def new_work(chosen: Tensor, reach: int, piece: int = PIECE) -> tuple[Tensor, Tensor, Tensor]:
    """Room for `entry`, `pieces` and `upto`."""
    X, T, n = chosen.shape
    entry = chosen.new_empty((X, T * n), dtype=torch.int64 if reach >= 2**31 else torch.int32)
    pieces = chosen.new_empty((6, X * T + X * -(-T * n // piece)), dtype=torch.int32)
    return entry, pieces, chosen.new_empty(X * (T + 1), dtype=torch.int64)


def build_work(entry: Tensor, pieces: Tensor, upto: Tensor, block: int) -> Work:
    """From what was kept of it: the rest follows from how large that is."""
    X = len(entry)
    T = len(upto) // X - 1
    most = pieces.shape[1] - X * T
    return Work(entry, pieces, upto, X * -(-T // block) + most, 2 * most)
