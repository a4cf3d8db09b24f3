"""What the training step asks of a strategy; the single process is the base that does nothing."""

from __future__ import annotations

import contextlib

import torch

from paceline.engine.powersgd import PowerSgd


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

    @property
    def powersgd(self) -> PowerSgd | None:
        """What compresses its gradients with a memory of its own."""
        return None

    def accumulating(self) -> contextlib.AbstractContextManager[object]:
        """Around every micro-step but the last: gradients stay on this rank."""
        return contextlib.nullcontext()
