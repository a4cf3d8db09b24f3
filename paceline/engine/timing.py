"""True wall time per step, split into phases; the host never waits for the device to know it.

On CUDA everything is measured with events on the device's own time line, because the host runs ahead of it.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator
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


def deviation(values: list[float]) -> float:
    """The standard deviation, as statistics.stdev has it, which takes exact fractions and twenty times as long for it."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


class Window:
    """Steps whose times have been taken, and are added up when somebody asks."""

    def __init__(self, wall_s: float, step_ms: list[float], phase_ms: dict[str, float]) -> None:
        self._wall_s = wall_s
        self._step_ms = step_ms
        self._phase_ms = phase_ms

    def read(self) -> WindowTimes:
        steps = len(self._step_ms)
        return WindowTimes(
            steps,
            self._wall_s,
            self._wall_s * 1e3 / steps,
            statistics.median(self._step_ms),
            percentile(self._step_ms, 0.9),
            deviation(self._step_ms),
            {phase: total / steps for phase, total in self._phase_ms.items()},
        )


class StepTimer:
    """Times of steps on a device that works in step with the host."""

    is_late = False
    """the times of a window are known a step later"""

    def __init__(self) -> None:
        self._wall_s = 0.0
        self._running_since: float | None = None
        self._step_ms: list[float] = []
        self._phase_ms = dict.fromkeys(STEP_PHASES, 0.0)
        self._phase: str | None = None
        self._since = 0.0
        self._step_began = 0.0

    def resume(self) -> None:
        """Training goes on: wall time counts from here, unless it does already."""
        if self._running_since is None:
            self._running_since = time.perf_counter()

    def pause(self) -> None:
        """Something else than training (evaluation, checks) begins, when the device has caught up: wall time stops counting."""
        self._end_span()

    def _end_span(self) -> None:
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

    def close_window(self) -> Window | None:
        """The steps since the last call; None if there was none."""
        running = self._running_since is not None
        self._end_span()
        window = Window(self._wall_s, self._step_ms, self._phase_ms) if self._step_ms else None
        self._wall_s = 0.0
        self._step_ms = []
        self._phase_ms = dict.fromkeys(STEP_PHASES, 0.0)
        if running:
            self.resume()
        return window


_Events = list[tuple[str, torch.cuda.Event]]

SPLIT_EVERY = 5
"""On CUDA every fifth step of a window, from its first on, is split into phases: an event costs the host microseconds to record, and
the other steps have one each."""


class CudaWindow(Window):
    """The same as events on the device's time line, which may not have got there yet."""

    def __init__(self, spans: _Events, steps: list[_Events], free: list[torch.cuda.Event]) -> None:
        self._spans = spans
        self._steps = steps
        self._free = free

    def read(self) -> WindowTimes:
        """Waits for the device to reach the end of the window; later it does not wait, and may not be called again."""
        self._spans[-1][1].synchronize()
        wall_ms = sum(start.elapsed_time(end) for (_, start), (_, end) in _pairs(self._spans))
        phase_ms = dict.fromkeys(STEP_PHASES, 0.0)
        split = self._steps[::SPLIT_EVERY]
        for borders in split:
            for (phase, start), (_, end) in itertools.pairwise(borders):
                phase_ms[phase] += start.elapsed_time(end) * len(self._steps) / len(split)
        step_ms = [borders[0][1].elapsed_time(borders[-1][1]) for borders in self._steps]
        # A step begins where the one before it ended: the two share an event.
        self._free += {id(event): event for borders in (self._spans, *self._steps) for _, event in borders}.values()
        super().__init__(wall_ms / 1e3, step_ms, phase_ms)
        return super().read()


def _pairs(spans: _Events) -> Iterator[tuple[tuple[str, torch.cuda.Event], tuple[str, torch.cuda.Event]]]:
    return zip(spans[::2], spans[1::2], strict=True)


class CudaStepTimer(StepTimer):
    """The same on CUDA: events at the borders, read when the device has passed them. Closing a window does not wait for the device, which
    would stand still until the next step has been launched: 0.1 to 0.3 ms."""

    is_late = True

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[_Events] = []
        self._spans: _Events = []
        """begin, end, begin, end, …"""
        self._border: torch.cuda.Event | None = None
        """where the last step of this window ended, or training went on; None: nothing is known to have ended just now"""
        self._free: list[torch.cuda.Event] = []

    def resume(self) -> None:
        if len(self._spans) % 2 == 0:
            self._border = self._record()
            self._spans.append(("", self._border))

    def pause(self) -> None:
        torch.cuda.synchronize()
        self._end_span()

    def _end_span(self) -> None:
        self._border = None
        if len(self._spans) % 2:
            self._spans.append(("", self._record()))

    def begin_step(self, step: int) -> None:
        self._steps.append([])

    def enter(self, phase: str) -> None:
        borders = self._steps[-1]
        if not borders:
            borders.append((phase, self._border or self._record()))
        elif (len(self._steps) - 1) % SPLIT_EVERY == 0:
            borders.append((phase, self._record()))

    def end_step(self) -> None:
        self._border = self._record()
        self._steps[-1].append(("", self._border))

    def close_window(self) -> Window | None:
        running = len(self._spans) % 2 == 1
        self._end_span()
        window = CudaWindow(self._spans, self._steps, self._free) if self._steps else None
        self._spans, self._steps = [], []
        if running:
            self.resume()
        return window

    def _record(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


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

    def pause(self) -> None:
        torch.cuda.synchronize()
        super().pause()


def build_timer(device: torch.device, *, is_synced: bool = False) -> StepTimer:
    if device.type != "cuda":
        return StepTimer()
    return SyncedStepTimer() if is_synced else CudaStepTimer()
