"""A loss of all samples of a step, of all ranks and micro-steps: the same loss and gradient, however the step is cut.

    every micro-batch is embedded, without keeping what backward needs, but for the first one
    all ranks' rows come together, in one collective
    every rank computes the loss of all rows, and its gradient by its own rows and by what is shared
    every micro-batch is embedded again, with the same random numbers, and  rows · their gradient + shared · its gradient · the share of samples
    goes through backward; the sum over micro-steps and ranks has the gradient of the whole loss

With one micro-step nothing is embedded twice; with n, n - 1 of them are. No collective has to be differentiated: what each rank needs of the
others' gradient it has computed itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from paceline.engine.context import Context
from paceline.engine.loader import MicroBatch
from paceline.engine.losses import Enter, Losses, Term
from paceline.engine.out_of_memory import name_batch
from paceline.engine.precision import Precision
from paceline.engine.row_gather import RowGather
from paceline.engine.strategies.base import Strategy
from paceline.errors import UsageError
from paceline.workload import Contrasts, Embedded, Workload

_MOST_DIFFERENT = 0.1
"""Of the norm of some rows: rounding leaves a hundredth in bf16, another mask of dropout a good part of them."""


class ContrastLosses(Losses):
    """The losses of a workload that contrasts."""

    def __init__(
        self,
        workload: Workload,
        contrasts: Contrasts,
        context: Context,
        strategy: Strategy,
        precision: Precision,
        enter: Enter,
    ) -> None:
        super().__init__(workload, context, strategy, precision, enter)
        self._contrasts = contrasts
        self._plan = context.batch_plan
        twice = self._plan.accumulate - 1
        reason = f"{twice} of {twice + 1} micro-steps are embedded twice" if twice else "one micro-step, embedded once"
        context.events.choice("loss", "auto", "of the whole step", reason)
        self._gather = RowGather(context.ranks)
        self._kept: Embedded | None = None
        """of the first micro-batch, with its history"""
        self._rows: list[torch.Tensor] = []
        """the gradient by the rows of each micro-batch"""
        self._shared = torch.empty(0)
        """the gradient by what is shared"""
        self._unproven: torch.Tensor | None = None
        """in the first step, the rows of a micro-batch that is about to be embedded again"""
        self._is_proven = False
        self._events = context.events
        self._mean_loss = self._mean_weight = torch.empty(0)
        """of a sample, as this rank reports it"""

    def begin(self, items: Iterable[MicroBatch]) -> Iterable[MicroBatch]:
        fetched = list(items)
        embedded = [self._embed_first(item) for item in fetched[1:]]
        # The last before the loss and the first after it: what backward needs of it is kept, and of no other at the same time.
        with self._strategy.accumulating() if embedded else contextlib.nullcontext():
            self._kept = self._embed_named(fetched[0])
        if embedded and not self._is_proven:
            self._unproven, self._is_proven = embedded[0].rows, True
        self._weigh(fetched, [self._kept, *embedded])
        return fetched

    def take(self, item: MicroBatch) -> Term:
        embedded, self._kept = self._kept, None
        if embedded is None:
            embedded = self._run(self._embed, item)
            self._prove(embedded.rows)
        gradient, share = self._rows[item.micro_step], len(item.ids) / item.batch_samples
        # A dummy's rows have no gradient; they take part with nothing, so that backward runs as on the other ranks.
        surrogate = (embedded.rows[: len(item.ids)] * gradient).sum() + embedded.rows[len(item.ids) :].sum() * 0
        surrogate = surrogate + (embedded.shared * (self._shared * share)).sum()
        return Term(surrogate, self._mean_loss * len(item.ids), self._mean_weight * len(item.ids))

    def compute(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("a batch by itself has no loss")

    def rehearse(self, batch: Any) -> torch.Tensor:
        if self._plan.accumulate > 1:
            with torch.no_grad():
                self._embed(batch)
        embedded = self._embed(batch)
        return self._contrasts.contrast(widen(embedded.rows), widen(embedded.shared))[0]

    def read_wait_ms(self) -> float:
        return self._gather.read_wait_ms()

    def _embed(self, batch: Any) -> Embedded:
        with self._precision.autocast():
            return self._contrasts.embed(self._strategy.module, batch)

    def _embed_first(self, item: MicroBatch) -> Embedded:
        """Without a history; gradients will not travel."""
        with self._strategy.accumulating(), torch.no_grad():
            return self._embed_named(item)

    def _embed_named(self, item: MicroBatch) -> Embedded:
        try:
            embedded = self._run(self._embed, item)
        except (RuntimeError, MemoryError) as error:
            name_batch(error, item.batch)
            raise
        self._check(embedded, item)
        return embedded

    def _prove(self, rows: torch.Tensor) -> None:
        """In the first step of a start: that a second pass repeats the first, without which the gradient would not be that of the loss."""
        before, self._unproven = self._unproven, None
        if before is None:
            return
        difference = float((rows.detach() - before).norm() / before.norm().clamp(min=torch.finfo(torch.float32).tiny))
        if difference > _MOST_DIFFERENT:
            self._events.write(
                "warning",
                what=f"the second pass over a micro-batch does not repeat the first: its rows differ by {difference:.0%}",
                why="something in the model keeps a state between forwards, or draws from a generator that is not torch's default one",
                do="make it repeat itself, or set train.accumulate=1, with which there is one pass",
            )

    def _check(self, embedded: Embedded, item: MicroBatch) -> None:
        """UsageError, for the author of the recipe, where the rows are not those of the samples."""
        rows, shared = embedded.rows, embedded.shared
        wanted = len(item.ids) or len(rows)  # how many a dummy has is nobody's business
        if len(rows) != wanted or not rows.is_floating_point() or shared.dim() != 1:
            kind = type(self._workload)
            raise UsageError(
                f"a batch of {wanted} samples has rows of shape {tuple(rows.shape)} ({rows.dtype}) and shares {tuple(shared.shape)}",
                f"{kind.__module__}.{kind.__qualname__}.embed",
                "return one row of floating-point numbers per sample, and what they share as a vector; see docs/recipes.md",
            )

    def _weigh(self, items: Sequence[MicroBatch], embedded: Sequence[Embedded]) -> None:
        """The loss of the step, and its gradient by what this rank has brought to it."""
        rank, batch_samples = self._ranks.rank, items[0].batch_samples
        own = [one.rows.detach()[: len(item.ids)] for item, one in zip(items, embedded, strict=True)]
        # Whoever is late makes the others wait here, as in backward, of which their own time is told apart from their waiting.
        self._enter(items[0].step, "backward")
        rows = widen(self._gather.run(torch.cat(own), self._plan.sizes(batch_samples))).requires_grad_()
        shared = widen(embedded[0].shared.detach()).clone().requires_grad_()
        try:
            with torch.enable_grad():
                loss_sum, weight = self._contrasts.contrast(rows, shared)
            by_rows, self._shared = torch.autograd.grad(loss_sum, (rows, shared), materialize_grads=True)
        except (RuntimeError, MemoryError) as error:
            name_batch(error, {"rows": rows, "shared": shared})
            raise
        bounds = self._plan.slice(batch_samples, rank)
        self._rows = [by_rows[start:end] for start, end in bounds]
        # One bad row spoils the loss of all: only who brought such a row reports it, and is named.
        loss_sum, is_finite = loss_sum.detach().double(), torch.isfinite(rows.detach()).flatten(1).all(1)
        is_reported = torch.isfinite(loss_sum) | is_finite.all() | ~is_finite[bounds[0][0] : bounds[-1][1]].all()
        self._mean_loss = torch.where(is_reported, loss_sum, 0.0) / batch_samples
        self._mean_weight = weight.detach().double() / batch_samples


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """In fp32 at least."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def build_losses(
    workload: Workload, context: Context, strategy: Strategy, precision: Precision, enter: Enter
) -> Losses:
    if isinstance(workload, Contrasts):
        return ContrastLosses(workload, workload, context, strategy, precision, enter)
    return Losses(workload, context, strategy, precision, enter)
