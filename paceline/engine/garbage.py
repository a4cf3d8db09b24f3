"""Python's garbage collection, kept off the steps: made between them, by all ranks at the same one.

A collection that comes by itself may look at every object there is, tenths of a second in a process with torch, on one rank in the middle of
a step while all others wait for it. Here it is off while training lasts. What the start has left is set aside for good; what came since is
looked at in evaluations, before checkpoints, and every train.gc_every steps, which takes a millisecond.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from paceline.telemetry.events import EventLog


class Garbage:
    """When this rank collects."""

    def __init__(self, every: int, events: EventLog) -> None:
        self._every = every
        self._collected_step: int | None = None
        """None: it is Python's own business"""
        reason = "Python collects when it likes, on each rank by itself"
        if every:
            reason = f"between steps, all ranks at once: every {every} steps, at evaluations and checkpoints"
        events.choice("train.gc_every", every, every, reason)

    @contextlib.contextmanager
    def kept_off(self, step: int) -> Iterator[None]:
        """Around the training, which begins after that step."""
        if not self._every or not gc.isenabled():
            yield
            return
        self._collected_step = step
        # The young ones only, such as those of a throw-away iteration: the old are the imports, and would cost the start half a second.
        gc.collect(1)
        gc.freeze()
        gc.disable()
        try:
            yield
        finally:
            self._collected_step = None
            gc.enable()
            gc.unfreeze()

    def end_step(self, step: int) -> None:
        """After every step, on every rank."""
        if self._collected_step is not None and step - self._collected_step >= self._every:
            self.collect(step)

    def collect(self, step: int) -> None:
        """At a place that all ranks come to; once for a step."""
        if self._collected_step not in (None, step):
            self._collected_step = step
            gc.collect()
