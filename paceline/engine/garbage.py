"""Python's garbage collection, kept off the steps: made between them, by all ranks at the same one.

A collection that comes by itself looks at every object there is, a tenth of a second in a process with torch, on one rank in the middle of a
step while all others wait for it. Here it is off while training lasts; what the start has left is set aside, and only what came since is
looked at, at evaluations, checkpoints, and every train.gc_every steps.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator

from paceline.telemetry.events import EventLog


class Garbage:
    """When this rank collects."""

    def __init__(self, every: int, events: EventLog) -> None:
        self._every = every
        self._collected_step: int | None = None
        self._is_settled = False
        """what was there at the start has been looked at once"""
        self.longest_ms = 0.0
        """of the collections after the first one"""
        reason = f"between steps, all ranks at once: every {every} steps, at evaluations and checkpoints"
        events.choice(
            "train.gc_every", every, every, reason if every else "Python collects when it likes, on each rank by itself"
        )

    @contextlib.contextmanager
    def kept_off(self, step: int) -> Iterator[None]:
        """Around the training, which begins after that step."""
        if not self._every or not gc.isenabled():
            self._every = 0
            yield
            return
        self._collected_step = step
        gc.disable()
        gc.freeze()  # without collecting: the first step need not wait for it
        try:
            yield
        finally:
            gc.unfreeze()
            gc.enable()

    def end_step(self, step: int) -> None:
        """After every step, on every rank."""
        if self._every and self._collected_step is not None and step - self._collected_step >= self._every:
            self.collect(step)

    def collect(self, step: int) -> None:
        """At a place that all ranks come to; once for a step."""
        if not self._every or self._collected_step in (None, step):
            return
        self._collected_step = step
        if self._is_settled:
            began = time.perf_counter()
            gc.collect()
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - began) * 1e3)
            return
        self._is_settled = True
        gc.unfreeze()
        gc.collect()
        gc.freeze()
