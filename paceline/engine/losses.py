"""What a micro-step adds to its step: the loss of its samples, and what backward has to go through for their gradient.

    losses = Losses(workload, context, strategy, precision, enter)
    for item in losses.begin(items):       # the micro-batches of one step
        term = losses.take(item)           # a forward
        backward(term.surrogate)

Here each sample's loss is its own, and the surrogate is the loss itself; contrast.py is about losses of all samples of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch

from paceline.engine.context import Context
from paceline.engine.loader import MicroBatch, to_device
from paceline.engine.precision import Precision
from paceline.engine.seeding import seed_micro_step
from paceline.engine.strategies.base import Strategy
from paceline.workload import Workload

Enter = Callable[[int, str], None]
"""told of every phase of a step that begins"""
Result = TypeVar("Result")


class Term(NamedTuple):
    """Of one micro-step of one rank; those of all of them add up to the step's."""

    surrogate: torch.Tensor
    """has the gradient that the micro-step adds; its value means nothing"""
    loss_sum: torch.Tensor
    weight: torch.Tensor


class Losses:
    """A workload's own `loss` of every micro-batch."""

    def __init__(
        self, workload: Workload, context: Context, strategy: Strategy, precision: Precision, enter: Enter
    ) -> None:
        self._workload = workload
        self._strategy = strategy
        self._precision = precision
        self._ranks = context.ranks
        self._seed = context.config.run.seed
        self._enter = enter

    def begin(self, items: Iterable[MicroBatch]) -> Iterable[MicroBatch]:
        """The micro-batches of one step, in their order; each is asked for when the one before it has been trained."""
        return items

    def take(self, item: MicroBatch) -> Term:
        """The forward of a micro-batch; a dummy's counts for nothing, and keeps this rank's collectives in step with the others'."""
        loss_sum, weight = self._run(self.compute, item)
        if not item.ids:
            loss_sum, weight = loss_sum * 0, weight * 0
        return Term(loss_sum, loss_sum.detach(), weight.detach())

    def compute(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, weight) of a batch on the device."""
        # Entered anew for every batch: casts of weights are kept within one forward and never beyond, nor in a graph.
        with self._precision.autocast():
            return self._workload.loss(self._strategy.module, batch)

    def rehearse(self, batch: Any) -> torch.Tensor:
        """Something to run a throw-away backward through, from the same calls of the model as in a step; without collectives of its own."""
        return self.compute(batch)[0]

    def read_wait_ms(self) -> float:
        """How long this rank waited, in the last step, for what other ranks brought to its loss."""
        return 0.0

    def seed(self, item: MicroBatch) -> None:
        """Before every forward of a micro-batch: a second one draws what the first has drawn."""
        seed_micro_step(self._seed, item.step, item.micro_step, self._ranks.rank, self._ranks.device)

    def _run(self, function: Callable[[Any], Result], item: MicroBatch) -> Result:
        batch = to_device(item.batch, self._ranks.device)
        self._enter(item.step, "forward")
        self.seed(item)
        return function(batch)
