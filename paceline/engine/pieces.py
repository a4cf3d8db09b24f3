"""Tensors of which every rank holds some rows: what is whose, and how they become whole again.

A `DTensor` over all ranks, as `fully_shard` makes them: rank r holds ceil(rows / ranks) rows from r times as many on; the last ranks may
hold fewer, or none.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from paceline.engine.ranks import Ranks


def cut(value: torch.Tensor, like: DTensor) -> torch.Tensor:
    """The rows of a whole tensor that this rank holds of `like`."""
    num_rows = _rows_per_rank(like)
    start = min(like.device_mesh.get_local_rank() * num_rows, len(value))
    return value[start : start + num_rows]


def fill(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copies a whole tensor into one that this rank holds whole or in part."""
    if isinstance(target, DTensor):
        target.to_local().copy_(cut(value, target))
    else:
        target.copy_(value)


def join(piece: torch.Tensor, like: DTensor) -> DTensor:
    """A tensor that lies over the ranks as `like` does, from this rank's rows of it."""
    return DTensor.from_local(
        piece, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def gather(tensor: torch.Tensor, ranks: Ranks, writer: int | None = None) -> torch.Tensor | None:
    """The whole tensor, on one rank or on all of them; None on the others. Every rank calls it."""
    if not isinstance(tensor, DTensor):
        return tensor.detach() if writer in (None, ranks.rank) else None
    local, num_rows = tensor.to_local().detach(), _rows_per_rank(tensor)
    mine = local
    if len(local) < num_rows:  # all pieces travel at one size
        mine = local.new_zeros(num_rows, *local.shape[1:])
        mine[: len(local)] = local
    parts: list[torch.Tensor] | None = None
    if writer in (None, ranks.rank):
        whole = local.new_empty(ranks.world_size * num_rows, *local.shape[1:])
        parts = list(whole.split(num_rows))
    ranks.finish(ranks.gather_parts(mine.contiguous(), parts, writer))
    return None if parts is None else whole[: len(tensor)]


def _rows_per_rank(tensor: DTensor) -> int:
    return -(-len(tensor) // tensor.device_mesh.size())
