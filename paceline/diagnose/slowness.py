"""Slow, not hung: a run whose steps still come, much slower than they used to."""

from __future__ import annotations

from collections import deque
from statistics import median

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.limits import STEP_PHASES
from paceline.diagnose.sight import Sight
from paceline.telemetry.pulse import Pulse

FACTOR = 3.0
"""steps that take so many times as long as before are slow"""
_WINDOW_S = 5.0
_WINDOW_STEPS = 3
_USUAL = 6
"""windows that make a habit"""
_LASTING = 3
"""windows in a row that are slow: one long pause is none"""
_KEPT = 60


class Slowness:
    """Follows one rank: a step takes equally long on all of them."""

    def __init__(self) -> None:
        self._begun: tuple[float, Pulse] | None = None
        self._windows: deque[float] = deque(maxlen=_KEPT)
        self._slow: list[float] = []

    def see(self, sight: Sight) -> list[Finding]:
        pulse = next((seen.pulse for seen in sight.ranks if seen.pulse is not None), None)
        if pulse is None or pulse.attempt != sight.attempt or pulse.step == 0:
            return []
        if self._begun is None or self._begun[1].rank != pulse.rank or self._begun[1].attempt != pulse.attempt:
            self._begun, self._slow = (sight.monotonic, pulse), []
            self._windows.clear()
            return []
        began, first = self._begun
        steps = pulse.step - first.step
        if steps >= _WINDOW_STEPS and sight.monotonic - began >= _WINDOW_S:
            spent = sum(pulse.spent_s.get(name, 0.0) - first.spent_s.get(name, 0.0) for name in STEP_PHASES)
            self._weigh(spent / steps)
            self._begun = (sight.monotonic, pulse)
        return self._report(pulse)

    def _weigh(self, step_s: float) -> None:
        is_known = len(self._windows) >= _USUAL
        if is_known and step_s > FACTOR * median(self._windows):
            self._slow.append(step_s)  # kept out of what is usual
            if len(self._slow) > _KEPT:  # by now it is the habit
                self._windows.extend(self._slow)
                self._slow = []
            return
        self._slow = []
        self._windows.append(step_s)

    def _report(self, pulse: Pulse) -> list[Finding]:
        if len(self._slow) < _LASTING:
            return []
        usual, now = median(self._windows), median(self._slow[-_LASTING:])
        said = f"a step takes {now:.3g} s, {now / usual:.1f} times as long as before ({usual:.3g} s)"
        return [
            Finding(
                "slow",
                f"the run is slow, not hung: {said}",
                "see who waits least (finding straggler), and what else runs on the machine (paceline preflight)",
                phase=pulse.phase,
                step=pulse.step,
                witnesses=(Witness("pulse", True, said),),
                numbers={"step_s": now, "usual_s": usual, "factor": now / usual},
            )
        ]
