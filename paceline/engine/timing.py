"""True wall time per step, split into phases, synchronised only where a window is closed.

On CUDA the phases are measured with events on the device's own time line, because the host runs ahead of it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass

import torch

STEP_PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class WindowTimes:
    """Times of some consecutive steps, in milliseconds."""

    steps: int
    wall_s: float
    step_ms: float
    p50: float
    p90: float
    std: float
    phases: dict[str, float]

    def columns(self) -> dict[str, float]:
        """As the tables name them."""
        times = {"step_ms": self.step_ms, "step_ms_p50": self.p50, "step_ms_p90": self.p90, "step_ms_std": self.std}
        return times | {f"{phase}_ms": value for phase, value in self.phases.items()}


def percentile(values: list[float], fraction: float) -> float:
    """Nearest-rank percentile of some values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


class StepTimer:
    """Times of steps on a device that works in step with the host."""

    def __init__(self) -> None:
        self._wall_s = 0.0
        self._running_since: float | None = None
        self._step_ms: list[float] = []
        self._phase_ms = dict.fromkeys(STEP_PHASES, 0.0)
        self._phase: str | None = None
        self._since = 0.0
        self._step_began = 0.0

    def resume(self) -> None:
        """Training goes on: wall time counts from here."""
        self._running_since = time.perf_counter()

    def pause(self) -> None:
        """Something else than training (evaluation, checks) begins: wall time stops counting."""
        self._synchronize()
        if self._running_since is not None:
            self._wall_s += time.perf_counter() - self._running_since
            self._running_since = None

    def begin_step(self, step: int) -> None:
        self._step_began = self._since = time.perf_counter()

    def enter(self, phase: str) -> None:
        """The next phase of the step begins."""
        now = time.perf_counter()
        if self._phase is not None:
            self._phase_ms[self._phase] += (now - self._since) * 1e3
        self._phase, self._since = phase, now

    def end_step(self) -> None:
        now = time.perf_counter()
        if self._phase is not None:
            self._phase_ms[self._phase] += (now - self._since) * 1e3
        self._phase = None
        self._step_ms.append((now - self._step_began) * 1e3)

    def close_window(self) -> WindowTimes | None:
        """Times since the last call, after waiting for the device; None if there was no step."""
        running = self._running_since is not None
        self.pause()
        self._collect()
        steps = len(self._step_ms)
        window = None
        if steps:
            window = WindowTimes(
                steps,
                self._wall_s,
                self._wall_s * 1e3 / steps,
                statistics.median(self._step_ms),
                percentile(self._step_ms, 0.9),
                statistics.stdev(self._step_ms) if steps > 1 else 0.0,
                {phase: total / steps for phase, total in self._phase_ms.items()},
            )
        self._wall_s = 0.0
        self._step_ms = []
        self._phase_ms = dict.fromkeys(STEP_PHASES, 0.0)
        if running:
            self.resume()
        return window

    def _synchronize(self) -> None:
        pass

    def _collect(self) -> None:
        pass


class CudaStepTimer(StepTimer):
    """The same on CUDA: an event at each border between phases, read when the window is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[list[tuple[str, torch.cuda.Event]]] = []

    def begin_step(self, step: int) -> None:
        self._steps.append([])

    def enter(self, phase: str) -> None:
        self._steps[-1].append((phase, self._record()))

    def end_step(self) -> None:
        self._steps[-1].append(("", self._record()))

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _synchronize(self) -> None:
        torch.cuda.synchronize()

    def _collect(self) -> None:
        for borders in self._steps:
            for (phase, start), (_, end) in itertools.pairwise(borders):
                self._phase_ms[phase] += start.elapsed_time(end)
            self._step_ms.append(borders[0][1].elapsed_time(borders[-1][1]))
        self._steps = []


class SyncedStepTimer(StepTimer):
    """On CUDA, by the host's clock: the device has caught up at every border, so a phase has all the time that its work took, and
    none of another's. Nothing runs ahead any more, which is what it costs."""

    def begin_step(self, step: int) -> None:
        torch.cuda.synchronize()
        super().begin_step(step)

    def enter(self, phase: str) -> None:
        torch.cuda.synchronize()
        super().enter(phase)

    def end_step(self) -> None:
        torch.cuda.synchronize()
        super().end_step()

    def _synchronize(self) -> None:
        torch.cuda.synchronize()


def build_timer(device: torch.device, *, is_synced: bool = False) -> StepTimer:
    if device.type != "cuda":
        return StepTimer()
    return SyncedStepTimer() if is_synced else CudaStepTimer()
