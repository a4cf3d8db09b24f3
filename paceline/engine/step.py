"""One optimizer step: micro-steps of forward and backward, one normalisation over all ranks, one update.

The gradient is that of  sum of losses / sum of weights  over all ranks and micro-steps, so any split of a global batch gives the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from paceline.engine.average import Average
from paceline.engine.context import Context
from paceline.engine.graph import Graphs, Recorder
from paceline.engine.loader import MicroBatch, to_device
from paceline.engine.marks import MarkedTimer
from paceline.engine.optimizer import LearningRate
from paceline.engine.out_of_memory import name_batch
from paceline.engine.outcome import Pending, Tally, Verdict
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
        timer: StepTimer | MarkedTimer,
        hold_update: Callable[[], None],
        use_graph: bool,
        average: Average | None = None,
    ) -> None:
        config = context.config
        self._workload = workload
        self._strategy = strategy
        self._optimizer = optimizer
        self._precision = precision
        self._learning_rate = learning_rate
        self._timer = timer
        self._hold_update = hold_update
        self._average = average
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
        self._graphs: Graphs | None = None
        if use_graph:
            recorder = Recorder(self._ranks.device)
            self._graphs = Graphs(self._compute, strategy.model, recorder, context.events, config.train.graph)
        self.units = 0
        """units of throughput this rank has trained on"""

    @property
    def graph_bytes(self) -> int:
        """Memory of the device that CUDA graphs keep for themselves."""
        return self._graphs.scratch_bytes if self._graphs is not None else 0

    def run(self, step: int, batches: Iterator[MicroBatch]) -> tuple[Pending, int]:
        """Trains step `step`; returns its result, still on its way to the host, and the samples of the global batch."""
        tally = Tally(self._ranks)
        batch_samples = 0
        self._timer.begin_step(step)
        for micro_step in range(self._accumulate):
            self._enter(step, "data")
            item = next(batches)
            assert (item.step, item.micro_step) == (step, micro_step), "the loader is out of step"
            batch_samples = item.batch_samples
            is_last = micro_step == self._accumulate - 1
            with contextlib.nullcontext() if is_last else self._strategy.accumulating():
                try:
                    self._micro_step(item, tally, is_last)
                except (RuntimeError, MemoryError) as error:
                    name_batch(error, item.batch)
                    raise
        self._enter(step, "optimizer")
        self._learning_rate.apply(self._optimizer, step)
        pending = Pending(step, tally, self._update(step, tally))
        self._timer.end_step()
        return pending, batch_samples

    def _micro_step(self, item: MicroBatch, tally: Tally, is_last: bool) -> None:
        batch = to_device(item.batch, self._ranks.device)
        self._enter(item.step, "forward")
        # A dummy is too rare to be recorded.
        graph = self._graphs.find(batch) if self._graphs is not None and item.ids else None
        seed_micro_step(self._seed, item.step, item.micro_step, self._ranks.rank, self._ranks.device)
        if graph is not None:
            self._enter(item.step, "backward")  # forward and backward are one, and counted here
            self._count(item, *graph.replay(batch, is_last=is_last), tally)
            if is_last:
                tally.start(self._watch.reason)
            return
        loss_sum, weight = self._loss(batch)
        if not item.ids:
            # A dummy: it keeps this rank's collectives in step with the others' and counts for nothing.
            loss_sum, weight = loss_sum * 0, weight * 0
        self._count(item, loss_sum.detach(), weight.detach(), tally)
        if is_last:
            tally.start(self._watch.reason)
        self._enter(item.step, "backward")
        self._backward(loss_sum)

    def _compute(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """What a graph records."""
        loss_sum, weight = self._loss(batch)
        self._backward(loss_sum)
        return loss_sum.detach(), weight.detach()

    def _loss(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        # Entered anew for every batch: casts of weights are kept within one forward and never beyond, nor in a graph.
        with self._precision.autocast():
            return self._workload.loss(self._strategy.module, batch)

    def _backward(self, loss_sum: torch.Tensor) -> None:
        self._strategy.backward(self._precision.scale(loss_sum * self._loss_scale))

    def _count(self, item: MicroBatch, loss_sum: torch.Tensor, weight: torch.Tensor, tally: Tally) -> None:
        if item.ids:
            self.units += self._workload.units(item.ids)
            tally.add(loss_sum, weight)
        if self._ledger is not None:
            self._ledger.write(
                step=item.step,
                micro_step=item.micro_step,
                epoch=item.epoch,
                ids=item.ids,
                loss_sum=float(loss_sum),
                weight=float(weight),
            )

    def _update(self, step: int, tally: Tally) -> Verdict:
        """Normalises, clips and applies the gradients."""
        tally.finish()
        weight = tally.weight
        normalize = self._precision.unscale(torch.where(weight > 0, self._train.global_batch / weight, 0.0).float())
        gradients = self._strategy.gradients()
        grad_norm = self._strategy.total_norm(gradients) * normalize
        # All at once: on a GPU each of these small operations costs a launch.
        is_finite = torch.isfinite(torch.stack([tally.loss_sum, grad_norm.double(), tally.local_loss]))
        skip = 1.0 - is_finite[:2].all().float()  # by what all ranks have alike, never by this rank's own loss
        factor = normalize
        if self._train.clip_norm is not None:
            factor = normalize * (self._train.clip_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        self._hold_update()  # a snapshot of the weights may still be under way
        self._precision.apply(self._optimizer, skip, self._strategy.own_step)
        self._strategy.share_update()
        if self._average is not None:
            self._average.update(step, skip)
        self._strategy.drop_gradients()
        return Verdict(grad_norm, skip, self._precision.is_trouble(is_finite[0], skip), ~is_finite[2])

    def _enter(self, step: int, phase: str) -> None:
        self._timer.enter(phase)
        self._pulse.beat(step, phase)
