"""What the steps of a window came to, besides their time: the last loss, rates, counts of samples and units.

Loss, rate and norm may be tensors. They are kept as they come, without their graph, and read when the window is closed: only that waits
for a device. Counts are added up at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

Say = Callable[[str, str], None]
LARGEST = 2**63 - 1


def read_number(name: str, value: Any, say: Say) -> float | None:
    """The value as a number; None where it is none, which is said once."""
    if value is None:
        return None
    try:
        return float(value)
    except Exception as error:
        say(f"number {name}", f"{name} is not one number, and is left out: {type(error).__name__}: {error}")
        return None


def read_whole(name: str, value: Any, say: Say) -> int | None:
    """The value as a whole number from 0, such as a pulse can hold; None where it is none, which is said once."""
    try:
        number = int(value)
    except Exception as error:
        say(f"number {name}", f"{name} is not a whole number, and is left out: {type(error).__name__}: {error}")
        return None
    if not 0 <= number <= LARGEST:
        say(f"number {name}", f"{name}={number} is left out: it must be from 0 to {LARGEST}")
        return None
    return number


class Tally:
    """Counts for one rank, in samples and units of all ranks."""

    def __init__(self, world_size: int, samples: int | None, say: Say) -> None:
        self.epoch: int | None = None
        self._world_size = world_size
        self._say = say
        self._samples = samples
        """since the first step; None: not known how many came before"""
        self._window_samples, self._has_samples = 0.0, False
        self._window_units, self._has_units = 0.0, False
        self._loss: Any = None
        self._lr: Any = None
        self._grad_norm: Any = None

    @property
    def samples(self) -> int | None:
        return self._samples if self._has_samples else None

    def keep(self, loss: Any, lr: Any, grad_norm: Any) -> None:
        """The values of the last step that has ended."""
        self._loss, self._lr, self._grad_norm = None, lr, grad_norm
        if loss is not None and type(loss) is not float:
            detach = getattr(loss, "detach", None)  # what is kept until the next step must not keep its graph
            loss = loss if detach is None else detach()
        self._loss = loss

    def begin(self, samples: int | None) -> None:
        """How many samples came before the first step, where that is known only now."""
        self._samples = samples

    def read_loss(self) -> None:
        """Waits for the device, if the loss is on one."""
        self._loss = read_number("loss", self._loss, self._say)

    def count(self, samples: Any, global_samples: Any, units: Any, *, is_timed: bool) -> None:
        """What a step trained on; rates are over the steps whose time is known."""
        if samples is not None or global_samples is not None:
            self._count_samples(samples, global_samples, is_timed)
        amount = self._amount("units", units) if units is not None else None
        if amount is not None:
            self._has_units = True
            self._window_units += amount * self._world_size if is_timed else 0

    def close(self, step: int, window_steps: int) -> tuple[dict[str, Any], dict[str, float]]:
        """(a row of metrics.csv without its times, totals of the window's timed steps by the name of their rate)"""
        row = {
            "step": step,
            "epoch": self.epoch,
            "samples": self.samples,
            "loss": self._loss,
            "lr": read_number("lr", self._lr, self._say),
            "grad_norm": read_number("grad_norm", self._grad_norm, self._say),
            "window_steps": window_steps,
            "time": time.time(),
        }
        counted = {"samples_per_s": self._window_samples} if self._has_samples else {}
        counted |= {"units_per_s": self._window_units} if self._has_units else {}
        self._window_samples, self._window_units = 0.0, 0.0
        return row, counted

    def _count_samples(self, samples: Any, global_samples: Any, is_timed: bool) -> None:
        if global_samples is not None:
            total = self._amount("global_samples", global_samples)
        else:
            own = self._amount("samples", samples)
            total = own * self._world_size if own is not None else None
        if total is not None:
            self._has_samples = True
            self._window_samples += total if is_timed else 0
            if self._samples is not None:
                self._samples += int(total)

    def _amount(self, name: str, value: Any) -> float | None:
        number = value if type(value) is int else read_number(name, value, self._say)
        if number is None or (0 <= number < math.inf):
            return number
        self._say(f"number {name}", f"{name}={number} is left out: it must not be negative, nor endless")
        return None
