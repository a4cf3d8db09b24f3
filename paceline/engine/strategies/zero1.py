"""Stage 1: DistributedDataParallel, and an optimizer whose state is spread over the ranks.

Each parameter has an owner, who alone keeps its moments and updates it; after an update the owners send what they updated. The weights
of an owner lie one after another in one piece of memory, so that all of them are sent at once, from where they are to where they are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
import torch.distributed as dist

from paceline.config.sections import Parallel
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.base import find_trainable
from paceline.engine.strategies.ddp import DdpStrategy

_ALIGNMENT = 256
"""Bytes: what lies in a larger piece of memory begins where an allocation of its own would."""


class Zero1Strategy(DdpStrategy):
    """DDP with an owner for every parameter."""

    name = "zero1"
    sharing = "each rank holds the moments of its share of the parameters, and all weights and gradients"

    def __init__(self, model: torch.nn.Module, ranks: Ranks, parallel: Parallel) -> None:
        parameters = find_trainable(model)
        self._owners = plan_owners({name: p.nbytes for name, p in parameters.items()}, ranks.world_size)
        self._pieces = _join_storage(parameters, self._owners)
        self._ranks = ranks
        super().__init__(model, ranks, parallel)
        self.trainable = {name: p for name, p in parameters.items() if self._owners[name] == ranks.rank}

    def share_update(self) -> None:
        for work in [self._ranks.broadcast(piece, owner) for owner, piece in self._pieces]:
            self._ranks.finish(work)

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """Those of other ranks without their values."""
        mine = super().moments(optimizer)
        lists: list[list[tuple[str, torch.Size, torch.dtype]]] = [[] for _ in range(self._ranks.world_size)]
        dist.all_gather_object(lists, [(name, value.shape, value.dtype) for name, value in mine.items()])
        return {
            name: mine[name] if name in mine else torch.empty(shape, dtype=dtype, device="meta")
            for name, shape, dtype in sorted(itertools.chain.from_iterable(lists))
        }

    def cut_moment(self, name: str, moment: torch.Tensor) -> torch.Tensor | None:
        return moment if self._owners[name] == self._ranks.rank else None

    def writer(self, name: str) -> int | None:
        return self._owners.get(name)


def plan_owners(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """The owner of each parameter: the largest first, always to the rank that has least so far."""
    loads = [0] * world_size
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return owners


def _join_storage(
    parameters: Mapping[str, torch.nn.Parameter], owners: Mapping[str, int]
) -> list[tuple[int, torch.Tensor]]:
    """Lays the parameters of each owner and type into one piece of memory; (owner, piece) of each."""
    groups: dict[tuple[int, torch.dtype], list[torch.nn.Parameter]] = {}
    for name, parameter in parameters.items():
        groups.setdefault((owners[name], parameter.dtype), []).append(parameter)
    pieces = []
    for (owner, dtype), members in groups.items():
        step = _ALIGNMENT // dtype.itemsize
        rooms = [-(-parameter.numel() // step) * step for parameter in members]
        piece = torch.zeros(sum(rooms), dtype=dtype, device=members[0].device)
        for parameter, room in zip(members, torch.split(piece, rooms), strict=True):
            place = room[: parameter.numel()].view(parameter.shape)
            place.copy_(parameter.detach())
            parameter.data = place
        pieces.append((owner, piece))
    return pieces
