"""Wall time per step and phase of a loop that tells when a step has ended, and what came of a window of such steps.

A step lasts from the end of the one before, so that nothing between the two is lost; evaluations and checkpoints are left out where
the loop declares them. How long the very first step took is known only if it declares a phase.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

STEP_PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Window:
    """Some consecutive steps; evaluated beside the training, not in it."""

    steps_s: list[float]
    """of the steps whose time is known"""
    phases_s: dict[str, float]

    @property
    def wall_s(self) -> float:
        return sum(self.steps_s)

    def columns(self) -> dict[str, Any]:
        """The columns of metrics.csv that are times; none where no time is known."""
        steps = sorted(value * 1e3 for value in self.steps_s)
        if not steps:
            return {}
        return {
            "step_ms": self.wall_s * 1e3 / len(steps),
            "step_ms_p50": statistics.median(steps),
            "step_ms_p90": steps[min(len(steps) - 1, int(0.9 * len(steps)))],
            "step_ms_std": statistics.stdev(steps) if len(steps) > 1 else 0.0,
        } | {f"{phase}_ms": value for phase, value in self.phase_ms().items()}

    def phase_ms(self) -> dict[str, float]:
        """Mean per step of the phases that the loop declared."""
        return {
            phase: value * 1e3 / len(self.steps_s) for phase, value in self.phases_s.items() if value and self.steps_s
        }


class Stopwatch:
    """Takes the time; only the training thread may call it."""

    def __init__(self) -> None:
        self.phase: str | None = None
        """the innermost one declared"""
        self._outer: list[str | None] = []
        self._since = 0.0
        self._began: float | None = None
        self._paused_s = 0.0
        self._steps_s: list[float] = []
        self._phases_s = dict.fromkeys(STEP_PHASES, 0.0)

    def enter(self, phase: str) -> None:
        now = time.perf_counter()
        if self.phase is not None:
            self._count(now)
        if self._began is None:
            self._began = now
        self._outer.append(self.phase)
        self.phase, self._since = phase, now

    def leave(self) -> None:
        now = time.perf_counter()
        self._count(now)
        self.phase, self._since = self._outer.pop(), now

    def end_step(self) -> bool:
        """A step has ended. Whether it is known how long it took."""
        now = time.perf_counter()
        if self.phase is not None:
            self._count(now)
            self._since = now
        is_known = self._began is not None
        if self._began is not None:
            self._steps_s.append(now - self._began - self._paused_s)
        self._began, self._paused_s = now, 0.0
        return is_known

    def seconds_in(self, phase: str) -> float | None:
        """How long the phase has been going on; None in another one."""
        return time.perf_counter() - self._since if self.phase == phase else None

    def close_window(self) -> Window:
        """The steps since the last call."""
        window = Window(self._steps_s, self._phases_s)
        self._steps_s, self._phases_s = [], dict.fromkeys(STEP_PHASES, 0.0)
        return window

    def _count(self, now: float) -> None:
        spent = now - self._since
        if self.phase in self._phases_s:
            self._phases_s[self.phase] += spent
        elif self.phase != "step":
            self._paused_s += spent
