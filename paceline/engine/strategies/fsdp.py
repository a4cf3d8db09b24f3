"""Stages 2 and 3: every rank holds its rows of weights, gradients and moments (`fully_shard`).

The elements of the model's lists of modules, its blocks, are sharded one by one, the rest as one more unit. A unit's weights are
gathered when it is called. Stage 2 keeps them until its backward is done; stage 3 lets them go after its forward and gathers them again,
but for the rest, whose weights backward needs at once. The optimizer sees plain tensors, this rank's rows: fused kernels and flags on
the device work as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from paceline.config.sections import Parallel
from paceline.engine.blocks import find_blocks
from paceline.engine.compression import COMPRESSED_TYPES
from paceline.engine.pieces import cut, fill, gather, join
from paceline.engine.ranks import Ranks
from paceline.engine.rows import find_tables
from paceline.engine.strategies.base import Strategy, find_trainable, join_norms
from paceline.engine.strategies.plain import build_plain, remember
from paceline.errors import ConfigError
from paceline.telemetry.events import EventLog


class FsdpStrategy(Strategy):
    """`fully_shard` around the blocks and around the model."""

    name = "fsdp"
    keeps_replicas = False
    needs_even_calls = True

    def __init__(self, model: nn.Module, ranks: Ranks, parallel: Parallel) -> None:
        _check_parameters(model, parallel.zero_stage)
        self._ranks = ranks
        self._originals = remember(model)
        self._plain: nn.Module | None = None
        self._is_syncing = True
        group = torch.distributed.group.WORLD
        assert group is not None
        mesh = DeviceMesh.from_group(group, ranks.device.type)
        policy = MixedPrecisionPolicy(reduce_dtype=COMPRESSED_TYPES.get(parallel.compression))
        blocks = find_own_blocks(model)
        tables = find_tables(model)
        for table in tables.values():
            table.data = table.data.to(ranks.device)
        for unit in (*blocks, model):
            is_let_go = parallel.zero_stage == 3 and unit is not model
            sharded = fully_shard(
                unit,
                mesh=mesh,
                reshard_after_forward=is_let_go,
                mp_policy=policy,
                ignored_params=set(tables.values()),
            )
            # Sums, without any division: some versions of torch take gloo's average for a sum, and say nothing.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        self.sharing = (
            f"each rank holds its rows of weights, gradients and moments; {len(blocks)} blocks and the rest are gathered one by one, "
            + ("in forward and again in backward" if parallel.zero_stage == 3 else "once per forward and backward")
        )
        super().__init__(model)
        self._sharded = cast(dict[str, DTensor], find_trainable(model))
        self.trainable = {name: nn.Parameter(rows.to_local().detach()) for name, rows in self._sharded.items()}
        saved = model.state_dict().keys()
        self._buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
        if self._buffers:
            model.register_forward_pre_hook(self._send_buffers)

    @classmethod
    def build(cls, model: nn.Module, ranks: Ranks, parallel: Parallel, events: EventLog) -> FsdpStrategy:
        reason = "as configured"
        if parallel.compression != "none":
            reason = "the type in which gradients are reduced, and added up over micro-steps"
        events.choice("parallel.compression", parallel.compression, parallel.compression, reason)
        events.write(
            "note",
            what="each evaluation gathers the whole model on every rank",
            why=f"parallel.zero_stage={parallel.zero_stage}: ranks score different numbers of blocks of samples",
        )
        # Not sent to the device as a whole: each unit is, when it is sharded.
        return cls(model, ranks, parallel)

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        module = cast(FSDPModule, self.model)
        module.set_requires_gradient_sync(False)
        self._is_syncing = False
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)
            self._is_syncing = True

    def gradients(self) -> list[torch.Tensor]:
        found = []
        for name, rows in self.trainable.items():
            gradient = self._sharded[name].grad
            if gradient is not None:
                assert isinstance(gradient, DTensor)
                rows.grad = gradient.to_local()
                found.append(rows.grad)
        return found

    def total_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return join_norms(super().total_norm(gradients), self._ranks)

    def drop_gradients(self) -> None:
        super().drop_gradients()
        for rows in self.trainable.values():
            rows.grad = None

    @contextlib.contextmanager
    def whole(self) -> Iterator[nn.Module]:
        if self._plain is not None:
            yield self._plain
            return
        parameters = list(self.model.parameters())
        whole = dict(zip(parameters, gather(parameters, self._ranks), strict=True))
        self._plain = build_plain(self.model, self._originals, whole)
        del whole
        try:
            yield self._plain
        finally:
            self._plain = None

    def fill(self, target: torch.Tensor, value: torch.Tensor) -> None:
        fill(target, value)

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        return {
            name: join(value, self._sharded[name.partition(".")[2]]) if value.dim() else value
            for name, value in super().moments(optimizer).items()
        }

    def cut_moment(self, name: str, moment: torch.Tensor) -> torch.Tensor | None:
        return cut(moment, self._sharded[name]).clone() if moment.dim() else moment

    def assemble(
        self, tensors: Mapping[str, torch.Tensor], shards: Sequence[Sequence[str]]
    ) -> Iterator[torch.Tensor] | None:
        return self._assemble(tensors, shards)

    def _assemble(self, tensors: Mapping[str, torch.Tensor], shards: Sequence[Sequence[str]]) -> Iterator[torch.Tensor]:
        for writer, names in enumerate(shards):
            yield from gather((tensors[name] for name in names), self._ranks, writer)

    def _send_buffers(self, *_: object) -> None:
        """As DDP does: what a forward changes is rank 0's on every rank, and so is what is saved of it."""
        if self._is_syncing and self.model.training:
            for work in [self._ranks.broadcast(buffer, 0) for buffer in self._buffers]:
                self._ranks.finish(work)


def find_own_blocks(model: nn.Module) -> list[nn.Module]:
    """The elements of the model's outermost lists of modules that have weights, and have them for themselves."""
    blocks = list(dict.fromkeys(block for _, block in find_blocks(model)))
    inside = {module for block in blocks for module in block.modules()}
    rest = [module for module in model.modules() if module not in inside]
    uses = [set(block.parameters()) for block in blocks] + [{p for module in rest for p in module._parameters.values()}]
    return [
        block
        for number, block in enumerate(blocks)
        if uses[number] and not any(uses[number] & other for index, other in enumerate(uses) if index != number)
    ]


def _check_parameters(model: nn.Module, stage: int) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0 or not parameter.is_contiguous():
            why = "has no rows" if parameter.dim() == 0 else "does not lie in one piece"
            what = f"parallel.zero_stage={stage} shards parameters by rows, and {name} {why}"
            raise ConfigError(what, "parallel.zero_stage", "set parallel.zero_stage=1, or 0")
