"""Windows: true wall time, with pauses left out, split into phases that add up."""

from __future__ import annotations

import time

import pytest

from paceline.engine.timing import StepTimer, percentile


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
    window = timer.close_window()
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
