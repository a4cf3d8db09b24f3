"""Windows: true wall time, with pauses left out, split into phases that add up."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from paceline.engine.timing import CudaStepTimer, StepTimer, deviation, percentile


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves by hand, in seconds."""

    class Clock:
        now = 100.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_a_window(clock):
    timer = StepTimer()
    timer.resume()
    for data_s in (0.1, 0.3):
        timer.begin_step(1)
        for phase, seconds in (
            ("data", data_s),
            ("forward", 1),
            ("backward", 2),
            ("data", 0.0),
            ("forward", 1),
            ("backward", 2),
            ("optimizer", 0.5),
        ):
            timer.enter(phase)
            clock.now += seconds
        timer.end_step()
        clock.now += 0.2  # between two steps: logging, say
    timer.pause()
    clock.now += 1000  # an evaluation
    timer.resume()
    closed = timer.close_window()
    assert closed is not None
    window = closed.read()
    assert window.steps == 2
    assert window.wall_s == pytest.approx(0.1 + 0.3 + 2 * 6.5 + 0.4)
    assert window.step_ms == pytest.approx(window.wall_s * 500)
    assert window.phases == pytest.approx({"data": 200, "forward": 2000, "backward": 4000, "optimizer": 500})
    assert window.p50 == pytest.approx(6700)
    assert window.p90 == pytest.approx(6800)
    assert timer.close_window() is None, "the next window begins empty"


def test_percentile_is_one_of_the_values():
    assert percentile([3.0, 1.0, 2.0], 0.9) == 3.0
    assert percentile([1.0], 0.9) == 1.0


def test_deviation_is_that_of_statistics():
    values = [22.1, 22.3, 21.9, 22.0, 25.1, 1e-3]
    assert deviation(values) == pytest.approx(statistics.stdev(values))
    assert deviation([7.0]) == 0.0


def test_going_on_while_it_goes_on_loses_no_time(clock):
    """A save beside the training ends with `resume`, and nothing had paused."""
    timer = StepTimer()
    timer.resume()
    timer.begin_step(1)
    clock.now += 2
    timer.end_step()
    timer.resume()
    clock.now += 1
    window = timer.close_window()
    assert window is not None
    assert window.read().wall_s == pytest.approx(3)


class Event:
    """A mark on the time line of a device that lags a second behind the host."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        Event.made += 1

    def record(self) -> None:
        self.at = time.perf_counter() + 1

    def elapsed_time(self, end: Event) -> float:
        assert time.perf_counter() >= end.at, "read before the device got there"
        return (end.at - self.at) * 1e3

    def synchronize(self) -> None:
        time.perf_counter.now = max(time.perf_counter(), self.at)


def test_a_window_on_a_gpu_is_closed_without_waiting_and_read_later(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timer, made = CudaStepTimer(), []
    timer.resume()
    for _ in range(3):
        for _ in range(2):
            clock.now += 0.5  # between two steps, which is the second one's time
            timer.begin_step(1)
            for phase, seconds in (("data", 1), ("forward", 2), ("backward", 3), ("optimizer", 4)):
                timer.enter(phase)
                clock.now += seconds
            timer.end_step()
        timer.pause()
        clock.now += 1000  # an evaluation
        timer.resume()
        before = clock.now
        window = timer.close_window()
        assert clock.now == before
        clock.now += 0.25  # the next step is launched meanwhile
        assert window is not None
        times = window.read()
        assert clock.now == before + 1, "until the device is there"
        assert (times.steps, times.wall_s, times.p50) == (2, pytest.approx(21), pytest.approx(10_500))
        assert times.phases == pytest.approx({"data": 1500, "forward": 2000, "backward": 3000, "optimizer": 4000})
        clock.now = before
        made.append(Event.made)
    assert made[2] == made[1], "events are used again"
    assert timer.close_window() is None


def test_on_a_gpu_every_fifth_step_is_split_into_phases(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    timer = CudaStepTimer()
    timer.resume()
    made = []
    for step in range(7):
        before = Event.made
        timer.begin_step(step)
        for phase in ("data", "forward", "backward", "optimizer"):
            timer.enter(phase)
            clock.now += 2 if step == 5 else 1
        timer.end_step()
        made.append(Event.made - before)
    assert made == [4, 1, 1, 1, 1, 4, 1]
    window = timer.close_window()
    assert window is not None
    times = window.read()
    assert times.step_ms == pytest.approx((6 * 4 + 8) * 1000 / 7)
    assert times.phases == pytest.approx(dict.fromkeys(times.phases, 1500)), "the mean of the two that were split"
    assert len({id(event) for event in timer._free}) == len(timer._free), "a shared event is free once"
