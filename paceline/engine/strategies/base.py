"""What the training step asks of a strategy; the single process is the base that does nothing."""

from __future__ import annotations

import contextlib

import torch


class Strategy:
    """One process, no wrapper."""

    rebuilds_buckets = False
    """the first iteration of a process is reduced otherwise than the others: see warm_up.py"""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        """the bare model, on its device: for evaluation, checks and state"""
        self.module: torch.nn.Module = model
        """what the training step calls: the model, or its wrapper"""

    @property
    def divisor(self) -> int:
        """By how much the strategy divides the sum of the ranks' gradients."""
        return 1

    def accumulating(self) -> contextlib.AbstractContextManager[object]:
        """Around every micro-step but the last: gradients stay on this rank."""
        return contextlib.nullcontext()

    def watch_waits(self, every: int) -> bool:
        """From now on measure, every so many steps, how long this rank waits for the others; False: it cannot be known."""
        return False

    def read_wait(self) -> tuple[int, float] | None:
        """(iteration, ms that this rank's gradients, all of them ready, waited for the others') of the last one measured."""
        return None
