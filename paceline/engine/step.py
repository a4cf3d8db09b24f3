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
from paceline.engine.contrast import build_losses
from paceline.engine.graph import Graph, Graphs, Recorder
from paceline.engine.loader import MicroBatch
from paceline.engine.marks import MarkedTimer
from paceline.engine.optimizer import LearningRate
from paceline.engine.out_of_memory import name_batch
from paceline.engine.outcome import Pending, Tally
from paceline.engine.precision import Precision
from paceline.engine.strategies.base import Strategy
from paceline.engine.tables import Tables
from paceline.engine.timing import StepTimer
from paceline.engine.update import Update
from paceline.engine.update_graph import RecordedUpdates
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
        tables: Tables | None = None,
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
        self._accumulate = context.batch_plan.accumulate
        self._ledger: Ledger | None = None
        if config.telemetry.ledger:
            self._ledger = Ledger(context.layout.ledger(self._ranks.rank), context.attempt)
        # The strategy divides the sum of gradients by its divisor. Gradients travel at the size of one sample, whatever the loss
        # weighs (fp16 overflows); the exact weight follows after the sum.
        self._loss_scale = strategy.divisor / config.train.global_batch
        self.losses = build_losses(workload, context, strategy, precision, self._enter)
        self._update = Update(config.train, strategy, optimizer, precision, average, tables)
        self._graphs: Graphs | None = None
        self._recorded_updates: RecordedUpdates | None = None
        """where one micro-step is the whole step"""
        if use_graph:
            recorder = Recorder(self._ranks.device)
            self._graphs = Graphs(self._compute, strategy.model, recorder, context.events, config.train.graph)
            if self._accumulate == 1:
                self._recorded_updates = RecordedUpdates(self._update, self._graphs, recorder, self._ranks, optimizer)
        self.units = 0
        """units of throughput this rank has trained on"""

    @property
    def graph_bytes(self) -> int:
        """Memory of the device that CUDA graphs keep for themselves."""
        return self._graphs.scratch_bytes if self._graphs is not None else 0

    def run(self, step: int, batches: Iterator[MicroBatch]) -> tuple[Pending, int]:
        """Trains step `step`; returns its result, still on its way to the host, and the samples of the global batch."""
        tally, graph, batch_samples = None, None, 0
        self._timer.begin_step(step)
        for item in self.losses.begin(self._fetch(step, batches)):
            batch_samples = item.batch_samples
            is_last = item.micro_step == self._accumulate - 1
            with contextlib.nullcontext() if is_last else self._strategy.accumulating():
                try:
                    graph = self._find_graph(item)
                    if graph is not None and self._recorded_updates is not None:
                        self._replay(graph, item)  # the update takes all from the graph
                    else:
                        tally = tally or Tally(self._ranks)
                        self._micro_step(item, graph, tally, is_last)
                except (RuntimeError, MemoryError) as error:
                    name_batch(error, item.batch)
                    raise
        self._enter(step, "optimizer")
        self._learning_rate.apply(self._optimizer, step)
        if tally is not None:
            pending = Pending(step, self._update.run(step, tally.finish(), self._hold_update), tally.votes)
        else:
            assert graph is not None
            assert self._recorded_updates is not None
            pending = self._recorded_updates.run(step, graph, self._watch.reason, self._hold_update)
        self._timer.end_step()
        return pending, batch_samples

    def _fetch(self, step: int, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        for micro_step in range(self._accumulate):
            self._enter(step, "data")
            item = next(batches)
            assert (item.step, item.micro_step) == (step, micro_step), "the loader is out of step"
            yield item

    def _find_graph(self, item: MicroBatch) -> Graph | None:
        """What forward and backward of such a batch are recorded as; where they are one, both are counted as backward."""
        if self._graphs is None or not item.ids:  # a dummy is too rare to be recorded
            return None
        self._enter(item.step, "backward")
        return self._graphs.find(item.batch)

    def _micro_step(self, item: MicroBatch, graph: Graph | None, tally: Tally, is_last: bool) -> None:
        if graph is not None:
            tally.add(*self._replay(graph, item))
            graph.leave_gradients(is_last=is_last)
            if is_last:
                tally.start(self._watch.reason)
            return
        term = self.losses.take(item)
        if item.ids:
            tally.add(term.loss_sum, term.weight)
        self._count(item, term.loss_sum, term.weight)
        if is_last:
            tally.start(self._watch.reason)
        self._enter(item.step, "backward")
        self._precision.weigh(term.weight, len(item.ids))
        self._backward(term.surrogate)

    def _replay(self, graph: Graph, item: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        self.losses.seed(item)
        loss_sum, weight = graph.replay(item.batch)
        self._count(item, loss_sum, weight)
        return loss_sum, weight

    def _compute(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """What a graph records."""
        loss_sum, weight = self.losses.compute(batch)
        self._backward(loss_sum)
        return loss_sum.detach(), weight.detach()

    def _backward(self, loss: torch.Tensor) -> None:
        self._strategy.backward(self._precision.scale(loss * self._loss_scale))

    def _count(self, item: MicroBatch, loss_sum: torch.Tensor, weight: torch.Tensor) -> None:
        if item.ids:
            self.units += self._workload.units(item.ids)
        if self._ledger is not None:
            self._ledger.write(
                step=item.step,
                micro_step=item.micro_step,
                epoch=item.epoch,
                ids=item.ids,
                loss_sum=float(loss_sum),
                weight=float(weight),
            )

    def _enter(self, step: int, phase: str) -> None:
        self._timer.enter(phase)
        self._pulse.beat(step, phase)
