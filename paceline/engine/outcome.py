"""What came of a step: its loss, gradient norm, whether it was finite, and whether the ranks agreed to stop.

Everything rides on one small all-reduce that starts before the last backward and is read a step later, so that no step waits for it:
all ranks read the same numbers after the same step, and so decide alike, within two steps of whatever asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from paceline.engine.ranks import Ranks
from paceline.engine.stop import STOP_REASONS

_HEAD = 2  # loss sum, weight; the votes to stop follow


@dataclass(frozen=True)
class Outcome:
    """A step's result, on the host; the same on every rank but for `bad_here`."""

    step: int
    loss: float
    grad_norm: float
    skipped: bool
    """a loss or gradient was not finite: the update was left out"""
    bad: bool
    """and that is not the everyday overflow of fp16"""
    bad_here: bool
    """this rank's own loss was not finite"""
    stop: str | None
    """why the ranks agreed to stop"""


class Tally:
    """Sums of one step over its micro-steps and all ranks: (loss sum, weight, votes)."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._sums = torch.zeros(_HEAD + len(STOP_REASONS), dtype=torch.float64, device=ranks.device)
        self._work: dist.Work | None = None
        self.loss_sum, self.weight, self.votes = self._sums[0], self._sums[1], self._sums[_HEAD:]
        self.local_loss = self.loss_sum
        """of this rank alone"""

    def add(self, loss_sum: torch.Tensor, weight: torch.Tensor) -> None:
        """A micro-step's sums, without their history."""
        self.loss_sum.add_(loss_sum)
        self.weight.add_(weight)

    def start(self, stop: str | None) -> None:
        """Begins the sum over all ranks, with this rank's vote."""
        if stop is not None:
            self.votes[STOP_REASONS.index(stop)] = 1
        if self._ranks.has_group:
            self.local_loss = self.loss_sum.clone()
        self._work = self._ranks.all_reduce(self._sums)

    def finish(self) -> None:
        self._ranks.finish(self._work)


class Verdict(NamedTuple):
    """What a step's update found, as scalars on the device; see `Outcome`."""

    grad_norm: torch.Tensor
    skip: torch.Tensor
    bad: torch.Tensor
    bad_here: torch.Tensor


class Pending:
    """A step's result on its way to the host; `read` waits only if the device has not got there yet."""

    def __init__(self, step: int, tally: Tally, verdict: Verdict) -> None:
        self.step = step
        loss = tally.loss_sum / tally.weight.clamp(min=torch.finfo(torch.float64).tiny)
        values = torch.cat([torch.stack([loss, *(value.double() for value in verdict)]), tally.votes])
        self._event: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = values
        self._outcome: Outcome | None = None

    def read(self) -> Outcome:
        if self._outcome is None:
            if self._event is not None:
                self._event.synchronize()
            loss, norm, skipped, bad, bad_here, *votes = self._host.tolist()
            stop = next((reason for reason, count in zip(STOP_REASONS, votes, strict=True) if count > 0), None)
            self._outcome = Outcome(self.step, loss, norm, skipped > 0, bad > 0, bad_here > 0, stop)
        return self._outcome
