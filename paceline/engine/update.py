"""The end of an optimizer step: gradients normalised, clipped and applied, and what came of it, as numbers on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.config.sections import Train
from paceline.engine.average import Average
from paceline.engine.outcome import Sums
from paceline.engine.precision import Precision
from paceline.engine.strategies.base import Strategy
from paceline.engine.tables import Tables


class Update:
    """Applies the gradients that the micro-steps of a step have left."""

    def __init__(
        self,
        train: Train,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        average: Average | None = None,
        tables: Tables | None = None,
    ) -> None:
        self._train = train
        self._strategy = strategy
        self._optimizer = optimizer
        self._precision = precision
        self._average = average
        self._tables = tables

    @property
    def is_recordable(self) -> bool:
        """Whether all of it happens on the device, by kernels that are the same in every step."""
        # An average weighs its first steps by their number, which the host knows.
        return (
            self._average is None and self._strategy.own_step is None and self._optimizer.defaults.get("fused") is True
        )

    def run(self, step: int, sums: Sums, hold: Callable[[], None]) -> torch.Tensor:
        """(loss, gradient norm, skipped, bad, bad on this rank) as float64; see Outcome. `hold`: the weights may not change before."""
        weight = sums.weight
        normalize = self._precision.unscale(torch.where(weight > 0, self._train.global_batch / weight, 0.0).float())
        gradients = self._strategy.gradients()
        rows = self._tables.gather() if self._tables is not None else {}
        grad_norm = self._strategy.total_norm(gradients)
        if self._tables is not None:
            grad_norm = torch.hypot(grad_norm.to(normalize.device), self._tables.norm(rows))
        grad_norm = grad_norm * normalize
        # All at once: on a GPU each of these small operations costs a launch.
        is_finite = torch.isfinite(torch.stack([sums.loss, grad_norm.double(), sums.local_loss]))
        skip = 1.0 - is_finite[:2].all().float()  # by what all ranks have alike, never by this rank's own loss
        factor = normalize
        if self._train.clip_norm is not None:
            factor = normalize * (self._train.clip_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        if gradients:  # tables alone leave none
            torch._foreach_mul_(gradients, factor)
        hold()
        self._precision.apply(self._optimizer, skip, self._strategy.own_step)
        if self._tables is not None:
            self._tables.update(rows, step, factor, skip)
        self._strategy.share_update()
        if self._average is not None:
            self._average.update(step, skip)
        self._strategy.drop_gradients()
        loss = sums.loss / weight.clamp(min=torch.finfo(torch.float64).tiny)
        is_bad = self._precision.is_trouble(is_finite[0], skip)
        return torch.stack([loss, grad_norm.double(), skip.double(), is_bad.double(), (~is_finite[2]).double()])
