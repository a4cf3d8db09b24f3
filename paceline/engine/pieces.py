"""Tensors of which every rank holds some rows: what is whose, and how they become whole again.

A `DTensor` over all ranks, as `fully_shard` makes them: rank r holds ceil(rows / ranks) rows from r times as many on; the last ranks may
hold fewer, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.distributed.tensor import DTensor

from paceline.engine.ranks import Ranks

_AT_ONCE = 1 << 26
"""Bytes of whole tensors that travel together: a hundred small ones by themselves would each wait for all ranks."""


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


def gather(tensors: Iterable[torch.Tensor], ranks: Ranks, to: int | None = None) -> Iterator[torch.Tensor]:
    """These tensors whole, one after another, on one rank or on all of them; every rank goes through it, also where nothing comes."""
    batch: list[torch.Tensor] = []
    num_bytes = 0
    for tensor in tensors:
        if batch and num_bytes + tensor.nbytes > _AT_ONCE:
            yield from _gather_batch(batch, ranks, to)
            batch, num_bytes = [], 0
        batch.append(tensor)
        num_bytes += tensor.nbytes
    if batch:
        yield from _gather_batch(batch, ranks, to)


def _gather_batch(batch: Sequence[torch.Tensor], ranks: Ranks, to: int | None) -> Iterator[torch.Tensor]:
    pieces = [_bytes_here(tensor) for tensor in batch]
    mine = torch.cat(pieces)
    is_here = to in (None, ranks.rank)
    table = mine.new_empty(ranks.world_size if is_here else 0, len(mine))
    if len(mine):
        ranks.finish(ranks.gather_parts(mine, list(table) if is_here else None, to))
    if not is_here:
        return
    for tensor, columns in zip(batch, torch.split(table, [len(piece) for piece in pieces], dim=1), strict=True):
        if isinstance(tensor, DTensor):
            yield columns.reshape(-1).view(tensor.dtype).view(-1, *tensor.shape[1:])[: len(tensor)]
        else:
            yield tensor.detach()


def _bytes_here(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows, filled up to as many as the first rank has: all pieces travel at one size."""
    if not isinstance(tensor, DTensor):
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    rows = tensor.to_local().detach()
    missing = _rows_per_rank(tensor) - len(rows)
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return rows.contiguous().view(-1).view(torch.uint8)


def _rows_per_rank(tensor: DTensor) -> int:
    return -(-len(tensor) // tensor.device_mesh.size())
