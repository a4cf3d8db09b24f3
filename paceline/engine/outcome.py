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


class Sums(NamedTuple):
    """Of one step, over all its micro-steps and ranks, as float64 scalars on the device."""

    loss: torch.Tensor
    weight: torch.Tensor
    local_loss: torch.Tensor
    """of this rank alone"""


class Tally:
    """Adds up one step over its micro-steps and all ranks: (loss sum, weight, votes to stop)."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._numbers = torch.zeros(_HEAD + len(STOP_REASONS), dtype=torch.float64, device=ranks.device)
        self._work: dist.Work | None = None
        self._local_loss = self._numbers[0]

    @property
    def votes(self) -> torch.Tensor:
        """How many ranks want to stop, for each reason."""
        return self._numbers[_HEAD:]

    def add(self, loss_sum: torch.Tensor, weight: torch.Tensor) -> None:
        """A micro-step's sums, without their history."""
        self._numbers[0].add_(loss_sum)
        self._numbers[1].add_(weight)

    def start(self, stop: str | None) -> None:
        """Begins the sum over all ranks, with this rank's vote."""
        if stop is not None:
            self.votes[STOP_REASONS.index(stop)] = 1
        if self._ranks.has_group:
            self._local_loss = self._numbers[0].clone()
        self._work = self._ranks.all_reduce(self._numbers)

    def finish(self) -> Sums:
        self._ranks.finish(self._work)
        return Sums(self._numbers[0], self._numbers[1], self._local_loss)


class Pending:
    """A step's result on its way to the host; `read` waits only if the device has not got there yet."""

    def __init__(self, step: int, values: torch.Tensor, votes: torch.Tensor | str | None) -> None:
        """`values` as Update gives them; `votes` of all ranks, or, of the only one, why it wants to stop."""
        self.step = step
        self._stop = votes if isinstance(votes, str) else None
        if isinstance(votes, torch.Tensor):
            values = torch.cat([values, votes])
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
            # Without votes there is nobody to agree with.
            agreed = next((reason for reason, count in zip(STOP_REASONS, votes, strict=False) if count > 0), None)
            self._outcome = Outcome(self.step, loss, norm, skipped > 0, bad > 0, bad_here > 0, self._stop or agreed)
        return self._outcome
