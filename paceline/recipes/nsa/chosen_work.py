"""Who chose which block, turned round: for each block its queries, cut into pieces of work that one program of the GPU can take.

Found on the device, without asking it anything: what is not known here is how many pieces there are, and the programs read that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

PIECE = 1024
"""queries; block 0 is chosen by all of its document's, and one program alone would be waited for"""


@dataclass(frozen=True)
class Work:
    """The pieces of each row and group X. All int32."""

    entry: torch.Tensor
    """(X, T · n): the places t · n + i of all blocks in chosen_BTGn, one block after another, each block's in the order of the sequence"""
    pieces: torch.Tensor
    """(X, 5, room): the block's first key; from and to, in `entry`; which sum over its block's queries it gives, -1 where it is all of it;
    of how many pieces the block is, at its first one, 0 elsewhere"""
    count: torch.Tensor
    """(X): how many pieces there are"""
    sums_room: int
    """no row has more sums than this"""


def plan_work(chosen: torch.Tensor, piece: int = PIECE) -> Work:
    """From the first keys of each query's blocks (B, T, G, n), -1 for none."""
    B, T, G, n = chosen.shape
    entries = T * n
    first = chosen.permute(0, 2, 1, 3).reshape(B * G, entries)
    # Stable, so that each block's queries stay in their order; what was not chosen comes last, and is in no block.
    first, order = torch.where(first < 0, T, first).sort(dim=1, stable=True)
    edges = torch.arange(T + 1, dtype=first.dtype, device=first.device).expand(B * G, -1).contiguous()
    edges = torch.searchsorted(first, edges)
    pieces_of = (edges.diff(dim=1) + piece - 1).div(piece, rounding_mode="floor")
    upto = pieces_of.cumsum(1)
    sums_room = 2 * -(-entries // piece)
    room = T + -(-entries // piece)
    work = torch.arange(room, device=first.device).expand(B * G, -1).contiguous()
    block = torch.searchsorted(upto, work, right=True).clamp_(max=T - 1)
    of_block = pieces_of.gather(1, block)
    index = work - (upto.gather(1, block) - of_block)
    begin = edges.gather(1, block) + index * piece
    end = torch.minimum(begin + piece, edges.gather(1, block + 1))
    in_pieces = (of_block > 1) & (work < upto[:, -1:])
    sums = torch.where(in_pieces, in_pieces.cumsum(1) - 1, -1)
    num_pieces = torch.where(in_pieces & (index == 0), of_block, 0)
    pieces = torch.stack([block, begin, end, sums, num_pieces], 1).int().contiguous()
    return Work(order.int(), pieces, upto[:, -1].int().contiguous(), sums_room)
