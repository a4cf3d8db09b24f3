"""A loss of the whole step, of which a batch gives only the rows; in place of `loss`. Imports no torch.

loss_sum, weight = workload.contrast(rows_of_all_ranks, shared)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from paceline.workload.samples import Batch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Embedded:
    """A batch as a loss of the whole step sees it; both with their history, in floating point."""

    rows: torch.Tensor
    """(samples, …): all that the loss has to know of each, in the order of the batch; of one shape for all samples of a run"""
    shared: torch.Tensor
    """(numbers,): what all samples share, such as a temperature; from the weights alone, never from the batch. May be empty"""


@runtime_checkable
class Contrasts(Protocol):
    """What a workload has in place of `loss`, where a sample's loss depends on all samples of the step."""

    def embed(self, model: torch.nn.Module, batch: Batch) -> Embedded:
        """One batch, by itself: nothing of a sample may depend on which others are in it.

        `model` may be wrapped for data parallelism: call it once, do not reach into it; what is `shared` comes out of its forward, too.
        Called twice for a batch where a step has several micro-steps, the first time without gradient, with the same random numbers.
        """
        ...

    def contrast(self, rows: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, weight), both scalars on the device, from all rows of the step, of all ranks. Their order must not matter: it is
        the same on every rank, and that of the step's batch unless samples are `Measured`.

        `rows` and `shared` are in fp32 at least, outside autocast; the same on every rank, and so must be what comes out: no random
        numbers. The engine takes its gradient.
        """
        ...
