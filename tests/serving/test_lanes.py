from __future__ import annotations

import threading
import time

import pytest

from paceline.serving.lanes import Lane, StuckError

pytestmark = pytest.mark.timeout(30)


def until(condition) -> None:
    while not condition():
        time.sleep(0.001)


def test_results_and_failures_come_back() -> None:
    lane = Lane("a", width=2)
    calls = [lane.start(lambda number=number: 10 // number) for number in (1, 0, 5)]
    assert calls[0].result(20) == 10
    with pytest.raises(ZeroDivisionError):
        calls[1].result(20)
    assert calls[2].result(20) == 2
    lane.close()


def test_a_lane_whose_threads_all_hang_refuses_at_once_and_recovers() -> None:
    lane, gate, taken_up = Lane("slow", width=2), threading.Event(), threading.Semaphore(0)
    for _ in range(2):
        call = lane.start(lambda: (taken_up.release(), gate.wait(20)))
        assert taken_up.acquire(timeout=20)
        with pytest.raises(TimeoutError):
            call.result(0.01)
    with pytest.raises(StuckError, match="all 2 threads of slow hang"):
        lane.start(lambda: True)
    gate.set()
    until(lambda: lane._num_abandoned == 0)
    assert lane.start(lambda: "back").result(20) == "back"
    lane.close()


def test_what_nobody_took_up_is_not_run_any_more() -> None:
    lane, gate, ran = Lane("narrow", width=1), threading.Event(), []
    first = lane.start(lambda: gate.wait(20))
    with pytest.raises(TimeoutError):
        lane.start(lambda: ran.append(1)).result(0.01)
    gate.set()
    assert first.result(20)
    assert lane.start(lambda: "next").result(20) == "next"
    assert ran == []
    lane.close()


def test_threads_end_with_the_lane() -> None:
    lane = Lane("ends", width=3)
    for call in [lane.start(lambda: time.sleep(0.01)) for _ in range(3)]:
        call.result(20)
    lane.close()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "serving-ends"])
