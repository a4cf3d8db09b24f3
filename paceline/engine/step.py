"""One optimizer step: micro-steps of forward and backward, one normalisation over all ranks, one update.

The gradient is that of  sum of losses / sum of weights  over all ranks and micro-steps, so any split of a global batch gives the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch.nn.utils import get_total_norm

from paceline.engine.context import Context
from paceline.engine.loader import MicroBatch, to_device
from paceline.engine.optimizer import LearningRate
from paceline.engine.outcome import Pending, Tally
from paceline.engine.precision import Precision
from paceline.engine.seeding import seed_micro_step
from paceline.engine.strategies.base import Strategy
from paceline.engine.timing import StepTimer
from paceline.telemetry.ledger import Ledger
from paceline.workload import Workload


class TrainStep:
    """Runs optimizer steps; holds no state of its own beyond running counts."""

    def __init__(
        self,
        context: Context,
        workload: Workload,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        learning_rate: LearningRate,
        timer: StepTimer,
        hold_update: Callable[[], None],
    ) -> None:
        config = context.config
        self._workload = workload
        self._strategy = strategy
        self._optimizer = optimizer
        self._precision = precision
        self._learning_rate = learning_rate
        self._timer = timer
        self._hold_update = hold_update
        self._ranks = context.ranks
        self._watch = context.watch
        self._pulse = context.pulse
        self._train = config.train
        self._seed = config.run.seed
        self._accumulate = context.batch_plan.accumulate
        self._ledger: Ledger | None = None
        if config.telemetry.ledger:
            self._ledger = Ledger(context.layout.ledger(self._ranks.rank), context.attempt)
        # The strategy divides the sum of gradients by its divisor. Gradients travel at the size of one sample, whatever the loss
        # weighs (fp16 overflows); the exact weight follows after the sum.
        self._loss_scale = strategy.divisor / config.train.global_batch
        self._parameters = [p for p in strategy.model.parameters() if p.requires_grad]
        self.units = 0
        """units of throughput this rank has trained on"""

    def run(self, step: int, batches: Iterator[MicroBatch]) -> tuple[Pending, int]:
        """Trains step `step`; returns its result, still on its way to the host, and the samples of the global batch."""
        tally = Tally(self._ranks)
        batch_samples = 0
        self._timer.begin_step()
        for micro_step in range(self._accumulate):
            self._enter(step, "data")
            item = next(batches)
            assert (item.step, item.micro_step) == (step, micro_step), "the loader is out of step"
            batch_samples = item.batch_samples
            is_last = micro_step == self._accumulate - 1
            with contextlib.nullcontext() if is_last else self._strategy.accumulating():
                self._micro_step(item, tally, is_last)
        self._enter(step, "optimizer")
        self._learning_rate.apply(self._optimizer, step)
        pending = Pending(step, tally, *self._update(tally))
        self._timer.end_step()
        return pending, batch_samples

    def _micro_step(self, item: MicroBatch, tally: Tally, is_last: bool) -> None:
        batch = to_device(item.batch, self._ranks.device)
        self._enter(item.step, "forward")
        seed_micro_step(self._seed, item.step, item.micro_step, self._ranks.rank)
        with self._precision.autocast():
            loss_sum, weight = self._workload.loss(self._strategy.module, batch)
        if item.ids:
            self.units += self._workload.units(item.batch)
            tally.add(loss_sum, weight)
        else:
            # A dummy: it keeps this rank's collectives in step with the others' and counts for nothing.
            loss_sum, weight = loss_sum * 0, weight * 0
        if self._ledger is not None:
            self._ledger.write(
                step=item.step,
                micro_step=item.micro_step,
                epoch=item.epoch,
                ids=item.ids,
                loss_sum=float(loss_sum.detach()),
                weight=float(weight.detach()),
            )
        if is_last:
            tally.start(self._watch.reason)
        self._enter(item.step, "backward")
        self._precision.scale(loss_sum * self._loss_scale).backward()  # type: ignore[no-untyped-call]

    def _update(self, tally: Tally) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Normalises, clips and applies the gradients; returns their norm, whether the step was left out, and whether that is bad."""
        tally.finish()
        weight = tally.weight
        normalize = self._precision.unscale(torch.where(weight > 0, self._train.global_batch / weight, 0.0).float())
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        grad_norm = get_total_norm(gradients) * normalize
        finite_loss = torch.isfinite(tally.loss_sum)
        skip = 1.0 - (torch.isfinite(grad_norm) & finite_loss).float()
        factor = normalize
        if self._train.clip_norm is not None:
            factor = normalize * (self._train.clip_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        self._hold_update()  # a snapshot of the weights may still be under way
        self._precision.apply(self._optimizer, skip)
        self._optimizer.zero_grad(set_to_none=True)
        return grad_norm, skip, self._precision.is_trouble(finite_loss, skip)

    def _enter(self, step: int, phase: str) -> None:
        self._timer.enter(phase)
        self._pulse.beat(step, phase)
