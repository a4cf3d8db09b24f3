"""Times of short work on a device: the host's clock on a CPU, events on the stream of a GPU.

    with stopwatch(device) as clock:
        clock.start()
        work()
        clock.stop()
    clock.total_ms

On a GPU the host first gets ahead of the device, so that what is timed are kernels and not their launches.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator

import torch

_AHEAD_CYCLES = 40_000_000
"""of the GPU's clock, about 20 ms: longer than the host takes to enqueue a window"""


class Stopwatch:
    """Adds up spans of the host's time."""

    def __init__(self) -> None:
        self.total_ms = 0.0
        self._began = 0.0

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self) -> None:
        self.total_ms += (time.perf_counter() - self._began) * 1e3

    def finish(self) -> None:
        pass


class DeviceStopwatch(Stopwatch):
    """Adds up spans of the device's time, between events on its stream."""

    def __init__(self) -> None:
        super().__init__()
        self._event = functools.partial(torch.cuda.Event, enable_timing=True)
        self._spans: list[list[torch.cuda.Event]] = []

    def start(self) -> None:
        self._spans.append([self._mark()])

    def stop(self) -> None:
        self._spans[-1].append(self._mark())

    def finish(self) -> None:
        torch.cuda.synchronize()
        self.total_ms = sum(first.elapsed_time(last) for first, last in self._spans)

    def _mark(self) -> torch.cuda.Event:
        event = self._event()
        event.record()
        return event


@contextlib.contextmanager
def stopwatch(device: torch.device) -> Iterator[Stopwatch]:
    wait(device)
    clock = DeviceStopwatch() if device.type == "cuda" else Stopwatch()
    if device.type == "cuda":
        torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
    yield clock
    clock.finish()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
