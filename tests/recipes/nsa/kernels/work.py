"""Who chose which block, drawn at random, and the pieces of work that it makes, by lists of Python."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.recipes.nsa.kernels.chosen_work import Work


def draw_choice(positions: Tensor, groups: int, block: int, most: int, seed: int) -> Tensor:
    """(B · G, T, n): some of each query's blocks, rising, its own among them mostly; -1 behind them."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.full((len(positions) * groups, positions.shape[1], most), -1, dtype=torch.int32)
    for x in range(len(chosen)):
        for t, position in enumerate(positions[x // groups].tolist()):
            blocks = torch.randperm(position // block + 1, generator=generator)[:most].sort().values
            chosen[x, t, : len(blocks)] = t - position + blocks * block
    return chosen


def list_pieces(chosen: Tensor, piece: int) -> list[tuple[int, int, list[int], int, int]]:
    """Row and group, block, places of its queries, number of the sum, pieces of the block."""
    found = []
    sums = 0
    for x in range(len(chosen)):
        of_block: dict[int, list[int]] = {}
        for place, first in enumerate(chosen[x].flatten().tolist()):
            if first >= 0:
                of_block.setdefault(first, []).append(place)
        for first, places in sorted(of_block.items()):
            cut = [places[i : i + piece] for i in range(0, len(places), piece)]
            for i, some in enumerate(cut):
                is_one = len(cut) == 1
                found.append((x, first, some, -1 if is_one else sums, 0 if is_one or i else len(cut)))
                sums += not is_one
    return found


def read_pieces(work: Work) -> list[tuple[int, int, list[int], int, int]]:
    total = int(work.count) & 0xFFFFFFFF
    rows = work.pieces[:, :total].T.tolist()
    return [(x, first, work.entry[x, a:b].tolist(), sums, count) for x, first, a, b, sums, count in rows]
