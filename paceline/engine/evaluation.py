"""Evaluation on all ranks, exact: every sample once, scored in blocks that do not depend on the world size, so neither do the digits.

All ranks score, the first one measures: outputs of all samples exist once, however many ranks share a machine.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np
import torch

from paceline.config.sections import RunConfig
from paceline.engine.average import Average
from paceline.engine.compilation import Compilation
from paceline.engine.loader import to_device
from paceline.engine.out_of_memory import name_batch
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.engine.stop import StopWatch
from paceline.engine.strategies.base import Strategy
from paceline.workload import Draw, SampleSet, Workload, check_metrics

_MOST_SENT = 16 * 2**20
"""bytes that a rank sends at a time"""


class Evaluator:
    """Evaluates a split with the ranks sharing its blocks."""

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks,
        workload: Workload,
        strategy: Strategy,
        precision: Precision,
        watch: StopWatch | None = None,
        compilation: Compilation | None = None,
        average: Average | None = None,
    ) -> None:
        self._workload = workload
        self._strategy = strategy
        self._precision = precision
        self._ranks = ranks
        self._config = config.evaluate
        self._draw = Draw(config.run.seed, epoch=0)
        self._placed: dict[str, SampleSet] = {}
        self._watch = watch
        """who may ask for a stop in the middle; None: nobody"""
        self._compilation = compilation
        """what is not used here: `paceline evaluate` has to find the same digits"""
        self._average = average
        """what is evaluated in place of the weights"""

    def size(self, split: str) -> int:
        """How many samples of a split are evaluated."""
        available = len(self._workload.evaluation_set(split))
        return available if self._config.max_samples is None else min(available, self._config.max_samples)

    def run(self, split: str) -> dict[str, float] | None:
        """The split's metrics, the same on every rank; None if the ranks agreed to stop in the middle."""
        samples = self._place(split)
        num_samples = self.size(split)
        block = min(self._config.block, num_samples)
        num_blocks = math.ceil(num_samples / block)
        mine: list[dict[str, torch.Tensor]] = []
        with (
            self._strategy.whole() as model,
            _evaluating(model),
            torch.no_grad(),
            self._precision.autocast(),
            self.as_evaluated(),
        ):
            # As many rounds on every rank, so that the vote below is one collective for all.
            for start in range(0, num_blocks, self._ranks.world_size):
                index = start + self._ranks.rank
                if index < num_blocks:
                    mine.append(self._score(model, samples, index * block, min((index + 1) * block, num_samples)))
                if self._agreed_to_stop():
                    return None
        outputs = self._gather(mine, num_samples, block)
        mine.clear()
        values = torch.zeros(len(self._workload.metric_names), dtype=torch.float64)
        if outputs is not None:
            found = check_metrics(self._workload, split, self._workload.metrics(split, outputs))
            values = torch.tensor([found[name] for name in self._workload.metric_names], dtype=torch.float64)
        if self._ranks.world_size > 1:
            self._ranks.finish(self._ranks.broadcast(values, 0))
        return dict(zip(self._workload.metric_names, values.tolist(), strict=True))

    def as_evaluated(self) -> contextlib.ExitStack:
        """The model as whoever loads it later will have it."""
        with contextlib.ExitStack() as stack:
            if self._compilation is not None:
                stack.enter_context(self._compilation.eagerly())
            if self._average is not None:
                stack.enter_context(self._average.in_place())
            return stack.pop_all()

    def _place(self, split: str) -> SampleSet:
        """The split's samples, on the device where they can be: sent there once."""
        if split not in self._placed:
            samples = self._workload.evaluation_set(split)
            placed = samples.on_device(self._ranks.device)
            self._placed[split] = samples if placed is None else placed
        return self._placed[split]

    def _score(self, model: torch.nn.Module, samples: SampleSet, start: int, end: int) -> dict[str, torch.Tensor]:
        batch = to_device(samples.fetch(range(start, end), self._draw), self._ranks.device)
        try:
            outputs = self._workload.predict(model, batch)
        except (RuntimeError, MemoryError) as error:
            name_batch(error, batch)
            raise
        # They stay on the device until all blocks are scored: no block waits for the one before it.
        return {name: _travelling(value.detach()) for name, value in outputs.items()}

    def _agreed_to_stop(self) -> bool:
        if self._watch is None:
            return False
        vote = float(self._watch.reason is not None)
        return bool(self._ranks.gather_floats([vote]).sum() > 0)

    def _gather(
        self, mine: list[dict[str, torch.Tensor]], num_samples: int, block: int
    ) -> dict[str, np.ndarray] | None:
        """All samples' outputs in the order of their ids, in float64 and int64, on the first rank; None on the others."""
        world_size = self._ranks.world_size
        if world_size == 1:
            whole = {name: torch.cat([part[name] for part in mine]).cpu() for name in mine[0]}
            return {name: values.to(_wide(values.dtype)).numpy() for name, values in whole.items()}
        rounds = math.ceil(math.ceil(num_samples / block) / world_size)
        # Rank 0 always has a block; the others may have none, and learn names, types and widths from it.
        outputs = {
            name: self._bring([part[name] for part in mine], (rounds, block, *shape), dtype)
            for name, (shape, dtype) in self._shared_names(mine[0] if mine else {}).items()
        }
        if not self._ranks.is_first:
            return None
        return {name: whole[:num_samples].numpy() for name, whole in outputs.items() if whole is not None}

    def _bring(self, mine: list[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """One output of all ranks, block after block, on the first one; `shape` is that of a rank's (rounds, block, …)."""
        rounds, block, *inner = shape
        is_first, world_size = self._ranks.is_first, self._ranks.world_size
        # Block b was scored by rank b mod world_size in round b // world_size.
        whole = torch.empty((rounds, world_size, block, *inner), dtype=_wide(dtype)) if is_first else None
        # Some rounds at a time, so that what travels is never a second copy of everything.
        stride = max(1, _MOST_SENT // max(1, block * math.prod(inner) * dtype.itemsize))
        for start in range(0, rounds, stride):
            parts = mine[start : start + stride]
            sent = torch.zeros((min(stride, rounds - start) * block, *inner), dtype=dtype)
            if parts:
                # Only the last block of all may be smaller, and it is the last one of its rank.
                sent[: sum(map(len, parts))] = torch.cat(parts)
            received = [torch.empty_like(sent) for _ in range(world_size)] if is_first else None
            self._ranks.finish(self._ranks.gather_parts(sent, received, to=0))
            if whole is not None:
                for rank, part in enumerate(received or ()):
                    whole[start : start + stride, rank] = part.reshape(-1, block, *inner)
        return whole.reshape(-1, *inner) if whole is not None else None

    def _shared_names(self, scored: dict[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        described = [{name: (tuple(value.shape[1:]), value.dtype) for name, value in scored.items()}]
        if self._ranks.has_group:
            torch.distributed.broadcast_object_list(described, src=0)
        return described[0]


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _travelling(value: torch.Tensor) -> torch.Tensor:
    """A copy to keep and to send: floats in float32 or float64, everything else as int64, so all ranks and transports have the type.

    A copy in any case: a part of a larger tensor must not keep all of that.
    """
    if not value.is_floating_point():
        return value.to(torch.int64, copy=True)
    return value.to(torch.float64 if value.dtype == torch.float64 else torch.float32, copy=True)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What is measured does not depend on the precision of the run."""
    return torch.float64 if dtype.is_floating_point else torch.int64
