"""Data parallelism by DeepSpeed, stages 0 to 3: its engine reduces the gradients and updates the weights.

Paceline weights a step by all samples of all ranks, which DeepSpeed knows nothing of: between the last backward and the engine's step
this rank's pieces of the averaged gradient are multiplied in place, and what the engine updates with is the gradient of every other
strategy. Its own mixed precision is not used: forward and backward run under autocast over fp32 weights, as elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from paceline.config.deepspeed import nest
from paceline.config.sections import Parallel
from paceline.engine.deepspeed import Called, build_engine, gathered, load_deepspeed, tools
from paceline.engine.optimizer import initial_state
from paceline.engine.ranks import Ranks
from paceline.engine.rows import find_tables
from paceline.engine.strategies.base import Strategy, join_norms
from paceline.engine.strategies.plain import build_plain, remember
from paceline.errors import CheckpointError, ConfigError
from paceline.telemetry.events import EventLog

_NEVER = 10**9


class DeepSpeedStrategy(Strategy):
    """Stages 0 to 2: all weights on every rank."""

    name = "deepspeed"

    def __init__(self, model: nn.Module, ranks: Ranks, parallel: Parallel) -> None:
        super().__init__(model)
        self._ranks = ranks
        self._parallel = parallel
        self._stage = parallel.zero_stage
        self.sharing = _SHARING[self._stage]
        self._weights = dict(model.named_parameters())
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self._weights.items()}
        self._called = Called(model, ranks.device.type)
        self._engine: Any = None
        self._pieces: dict[str, torch.Tensor] = {}
        """what this rank's optimizer updates in one piece with a parameter; from stage 1 on"""
        self._counts: dict[torch.Tensor, float] = {}
        self._outlines: dict[tuple[str, str], torch.Tensor] = {}
        self._is_syncing = True
        saved = model.state_dict().keys()
        self._buffers = [buffer for name, buffer in model.named_buffers() if name in saved]

    @classmethod
    def build(cls, model: nn.Module, ranks: Ranks, parallel: Parallel, events: EventLog) -> DeepSpeedStrategy:
        tables = find_tables(model)
        if tables:
            raise ConfigError(
                f"DeepSpeed reduces dense gradients, and {next(iter(tables))} is a table, whose gradient is its touched rows",
                "parallel.engine",
                "set parallel.engine=torch",
            )
        version = load_deepspeed(ranks, events).__version__
        events.choice("parallel.engine", parallel.engine, parallel.engine, f"DeepSpeed {version}, as configured")
        if parallel.deepspeed:
            events.choice("parallel.deepspeed", parallel.deepspeed, parallel.deepspeed, "passed through")
        events.write(
            "note",
            what="each step waits for its own result before it updates the weights",
            why="DeepSpeed's engine cannot leave out a step by a flag on the device",
        )
        return cls(model.to(ranks.device), ranks, parallel)

    @property
    def divisor(self) -> int:
        return self._ranks.world_size

    @property
    def own_step(self) -> Callable[[], object]:
        step: Callable[[], object] = self._engine.step
        return step

    @property
    def updated_copies(self) -> Sequence[torch.Tensor]:
        return list(self._pieces.values())

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        self._engine = build_engine(self._called, optimizer, self._configure(), self._ranks, self._parallel.timeout_s)
        self._engine.set_gradient_accumulation_boundary(True)
        self._engine.register_forward_pre_hook(self._begin_forward)
        self.module = self._engine
        if self._stage:
            self._take_pieces(optimizer)

    def _configure(self) -> dict[str, Any]:
        config = nest(self._parallel.deepspeed)
        zero = {"overlap_comm": False} | config.pop("zero_optimization", {})
        return config | {
            # One of each: where a step begins and ends, and what it weighs, is said by the calls.
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "steps_per_print": _NEVER,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": zero | {"stage": self._stage, "memory_efficient_linear": False},
        }

    def _take_pieces(self, optimizer: torch.optim.Optimizer) -> None:
        """Finds what DeepSpeed has put into the place of the parameters, and gives it the state that a first step would."""
        zero = self._engine.optimizer
        if self._stage == 3:
            groups, pieces = zero.fp16_groups, zero.fp32_partitioned_groups_flat
        else:
            groups, pieces = zero.bit16_groups, zero.single_partition_of_fp32_groups
        optimizer.state.clear()
        for group, piece in zip(groups, pieces, strict=True):
            optimizer.state[piece] = initial_state(optimizer, piece)
            self._pieces |= {self._names[parameter]: piece for parameter in group}
        if self._stage < 3:
            zero._lazy_init_hp_params_optimizer_state()

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        self._is_syncing = False
        self._engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self._is_syncing = True
            self._engine.set_gradient_accumulation_boundary(True)

    def backward(self, loss: torch.Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)

    def gradients(self) -> list[torch.Tensor]:
        """From stage 1 on this rank's share of them; what fills it up to an even size is zero."""
        if self._stage == 0:
            return super().gradients()
        groups = self._engine.optimizer.averaged_gradients.values()
        return [piece for group in groups if group is not None for piece in group]

    def total_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        norm = super().total_norm(gradients)
        return norm if self._stage == 0 else join_norms(norm, self._ranks)

    def drop_gradients(self) -> None:
        left = self.gradients() if self._stage else []
        if left:
            self._leave_out(left)
        super().drop_gradients()

    def _leave_out(self, pieces: Sequence[torch.Tensor]) -> None:
        """A step that was not made: the engine is shown that it cannot be, and clears up as it does after an overflow."""
        for piece in pieces:
            piece.fill_(torch.nan)
        before = self._engine.skipped_steps
        self._engine.step()
        assert self._engine.skipped_steps == before + 1, "DeepSpeed made a step that had to be left out"
        for piece in pieces:
            piece.zero_()  # stage 3 keeps them, and never writes what only fills them up

    def fill(self, target: torch.Tensor, value: torch.Tensor) -> None:
        target.copy_(value)
        if self._stage and target in self._names:
            tools().safe_set_full_fp32_param(target, value.to(target.device))

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """From stage 1 on without their values: a rank has parts of some."""
        found = super().moments(optimizer)
        if self._stage == 0:
            return found
        words = {key: key.partition(".") for key in found}
        return {
            key: self._outline(words[key][2], words[key][0]) if value.dim() else value for key, value in found.items()
        }

    def _state_of(self, name: str, optimizer: torch.optim.Optimizer) -> Mapping[str, torch.Tensor]:
        if self._stage == 0:
            return super()._state_of(name, optimizer)
        state: Mapping[str, torch.Tensor] = optimizer.state[self._pieces[name]]
        return state

    def place_moment(self, optimizer: torch.optim.Optimizer, entry: str, name: str, moment: torch.Tensor) -> bool:
        if self._stage == 0:
            return False
        piece = self._pieces[name]
        own = optimizer.state[piece].get(entry)
        if own is not None and own.dim():
            self._place(name, entry, moment.to(own.device, own.dtype))
        elif own is not None:
            if self._counts.setdefault(piece, float(moment)) != float(moment):
                raise CheckpointError(
                    f"DeepSpeed counts the steps of many parameters at once, and {name} has made {float(moment):g}, "
                    f"others {self._counts[piece]:g}",
                    f"optimizer.{entry}.{name}",
                    "set parallel.engine=torch, or parallel.zero_stage=0",
                )
            own.copy_(moment)
        return True  # what is missing or too much is refused when all are there

    def assemble(
        self, tensors: Mapping[str, torch.Tensor], shards: Sequence[Sequence[str]]
    ) -> Iterator[torch.Tensor] | None:
        return self._assemble(tensors, shards) if self._stage else None

    def _assemble(self, tensors: Mapping[str, torch.Tensor], shards: Sequence[Sequence[str]]) -> Iterator[torch.Tensor]:
        origins = {outline: origin for origin, outline in self._outlines.items()}
        for writer, names in enumerate(shards):
            for name in names:
                tensor = tensors[name]
                # Every rank takes part, also where nothing comes.
                whole = self._gather(*origins[tensor]) if tensor.is_meta else tensor.detach()
                if writer == self._ranks.rank:
                    yield whole

    def _outline(self, name: str, entry: str) -> torch.Tensor:
        """A moment of a parameter, or ("") the parameter itself, without its values."""
        if (name, entry) not in self._outlines:
            weight = self._weights[name]
            self._outlines[name, entry] = torch.empty(self._shape_of(weight), dtype=weight.dtype, device="meta")
        return self._outlines[name, entry]

    def _shape_of(self, weight: torch.Tensor) -> torch.Size:
        return weight.shape

    def _gather(self, name: str, entry: str) -> torch.Tensor:
        whole: torch.Tensor = tools().safe_get_full_optimizer_state(self._weights[name], entry)
        return whole

    def _place(self, name: str, entry: str, moment: torch.Tensor) -> None:
        tools().safe_set_full_optimizer_state(self._weights[name], moment, entry)

    def _begin_forward(self, *_: object) -> None:
        self._called.remember_autocast()
        # As DDP does: what a forward changes is rank 0's on every rank, and so is what is saved of it.
        if self._is_syncing and self.model.training:
            for work in [self._ranks.broadcast(buffer, 0) for buffer in self._buffers]:
                self._ranks.finish(work)


class DeepSpeedShardedStrategy(DeepSpeedStrategy):
    """Stage 3: the weights are shared out as well, and come together where a module is called."""

    keeps_replicas = False
    needs_even_calls = True

    def __init__(self, model: nn.Module, ranks: Ranks, parallel: Parallel) -> None:
        self._originals = remember(model)
        self._shapes: dict[torch.Tensor, torch.Size] = {parameter: parameter.shape for parameter in model.parameters()}
        self._plain: nn.Module | None = None
        super().__init__(model, ranks, parallel)

    @classmethod
    def build(cls, model: nn.Module, ranks: Ranks, parallel: Parallel, events: EventLog) -> DeepSpeedStrategy:
        events.write(
            "note",
            what="each evaluation gathers the whole model on every rank",
            why=f"parallel.zero_stage={parallel.zero_stage}: ranks score different numbers of blocks of samples",
        )
        return super().build(model, ranks, parallel, events)

    @contextlib.contextmanager
    def whole(self) -> Iterator[nn.Module]:
        if self._plain is not None:
            yield self._plain
            return
        whole = {weight: self._gather_weight(weight) for weight in self._weights.values()}
        self._plain = build_plain(self.model, self._originals, whole)
        del whole
        try:
            yield self._plain
        finally:
            self._plain = None

    def outline(self, target: torch.Tensor) -> torch.Tensor:
        return self._outline(self._names[target], "") if target in self._names else target

    def fill(self, target: torch.Tensor, value: torch.Tensor) -> None:
        if target not in self._names:
            target.copy_(value)
            return
        with gathered(target, is_changed=True):
            if self._ranks.is_first:
                target.copy_(value)
        if target.requires_grad:
            tools().safe_set_local_fp32_param(target, self._cut(target, value.to(target.device)))

    def _shape_of(self, weight: torch.Tensor) -> torch.Size:
        return self._shapes[weight]

    def _gather(self, name: str, entry: str) -> torch.Tensor:
        return super()._gather(name, entry) if entry else self._gather_weight(self._weights[name])

    def _gather_weight(self, weight: torch.Tensor) -> torch.Tensor:
        if weight.requires_grad:
            # Without a change of what is gathered at this moment, and what is not.
            whole: torch.Tensor = tools().safe_get_full_fp32_param(weight)
            return whole
        with gathered(weight):
            return weight.detach().clone()

    def _place(self, name: str, entry: str, moment: torch.Tensor) -> None:
        weight = self._weights[name]
        tools().safe_set_local_optimizer_state(weight, self._cut(weight, moment), entry)

    def _cut(self, weight: Any, value: torch.Tensor) -> torch.Tensor:
        """This rank's piece of a whole value; DeepSpeed's own way fails where the last rank has less than the others."""
        length = weight.ds_tensor.numel()
        part = value.flatten()[self._ranks.rank * length :][:length]
        return torch.cat([part, part.new_zeros(length - len(part))])


_SHARING = {
    0: "every rank holds everything",
    1: "each rank holds an even piece of the moments and a second copy of its weights, and all weights and gradients",
    2: "each rank holds an even piece of moments and gradients and a second copy of its weights, and all weights",
    3: "each rank holds an even piece of weights (twice), gradients and moments; a module's weights are gathered where it is called",
}


def find_kind(stage: int) -> type[DeepSpeedStrategy]:
    return DeepSpeedShardedStrategy if stage == 3 else DeepSpeedStrategy
