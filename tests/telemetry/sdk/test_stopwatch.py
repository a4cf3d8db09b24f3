"""Times of a loop on a clock that the test moves."""

from __future__ import annotations

import time

import pytest

from paceline.telemetry.sdk.stopwatch import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_a_step_lasts_from_the_end_of_the_one_before(clock: Clock) -> None:
    watch = Stopwatch()
    clock.spend(50)  # building the model
    assert not watch.end_step()
    for seconds in (1.0, 2.0, 3.0):
        clock.spend(seconds)
        assert watch.end_step()
    window = watch.close_window()
    columns = window.columns()
    assert window.steps_s == pytest.approx([1, 2, 3])
    assert (columns["step_ms"], columns["step_ms_p50"]) == pytest.approx((2000, 2000))
    assert columns["step_ms_p90"] == pytest.approx(3000)
    assert columns["step_ms_std"] == pytest.approx(1000)
    assert "data_ms" not in columns
    assert watch.close_window().columns() == {}


def test_the_first_step_has_a_time_where_a_phase_says_when_it_began(clock: Clock) -> None:
    watch = Stopwatch()
    clock.spend(50)
    watch.enter("data")
    clock.spend(1)
    watch.leave()
    clock.spend(2)
    assert watch.end_step()
    assert watch.close_window().steps_s == pytest.approx([3])


def test_evaluations_do_not_count_and_inner_phases_count_once(clock: Clock) -> None:
    watch = Stopwatch()
    watch.enter("forward")
    clock.spend(1)
    watch.enter("data")
    clock.spend(2)
    watch.leave()
    assert watch.phase == "forward"
    clock.spend(4)
    watch.leave()
    watch.enter("evaluate")
    clock.spend(100)
    assert watch.seconds_in("evaluate") == pytest.approx(100)
    assert watch.seconds_in("data") is None
    watch.leave()
    clock.spend(8)
    watch.end_step()
    watch.enter("optimizer")  # a step that ends inside a phase
    clock.spend(1)
    watch.end_step()
    clock.spend(1)
    watch.leave()
    watch.end_step()
    window = watch.close_window()
    assert window.steps_s == pytest.approx([15, 1, 1])
    phases = {"forward": 5, "data": 2, "optimizer": 2}
    assert window.phase_ms() == pytest.approx({name: value * 1e3 / 3 for name, value in phases.items()})
