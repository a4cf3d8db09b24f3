"""What a run is limited by: the numbers, and the knob."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.diagnose.bounds import judge_bounds, judge_pulses
from paceline.telemetry.pulse import Pulse


def rows(num: int = 20, **columns: Any) -> list[dict[str, Any]]:
    return [{"attempt": 1, "step": 10 * i, "step_ms": 100.0, "data_ms": 2.0} | columns for i in range(1, num + 1)]


@pytest.mark.parametrize(
    ("metrics", "timing", "kind", "knob"),
    [
        (rows(data_ms=40.0), {}, "data_bound", "data.num_workers"),
        (rows(), {0: rows(wait_ms=30.0), 1: rows(wait_ms=45.0)}, "communication_bound", "parallel.bucket_mb"),
        (rows(gpu_util=30), {}, "host_bound", "train.graph"),
    ],
)
def test_each_limit_has_its_knob(metrics: Any, timing: Any, kind: str, knob: str) -> None:
    (found,) = judge_bounds(metrics, timing)
    assert (found.kind, found.severity) == (kind, "warning")
    assert knob in found.do


@pytest.mark.parametrize(
    ("metrics", "timing"),
    [
        (rows(), {}),
        (rows(3, data_ms=90.0), {}),
        (rows(), {0: rows(wait_ms=2.0), 1: rows(wait_ms=60.0)}),  # a straggler, not the network
        (rows(gpu_util=95), {}),
        ([{"attempt": 1, "step": 1, "step_ms": None}] * 9, {0: []}),
        ([], {}),
    ],
)
def test_nothing_is_said_without_a_reason(metrics: Any, timing: Any) -> None:
    assert judge_bounds(metrics, timing) == []


def test_pulses_tell_too_whether_everybody_waits() -> None:
    def pulses(*waits_ms: float, waits: int = 100) -> list[Pulse]:
        spent = {"forward": 4.0, "backward": 6.0, "evaluate": 99.0}
        return [
            Pulse(rank, 1, 1, 100, "data", 0.0, 0, 0, waits, waits * each, spent, 100)
            for rank, each in enumerate(waits_ms)
        ]

    (found,) = judge_pulses(pulses(30.0, 45.0))
    assert (found.kind, round(found.numbers["share"], 2)) == ("communication_bound", 0.3)
    assert judge_pulses(pulses(5.0, 60.0)) == []
    assert judge_pulses(pulses(50.0, 60.0, waits=3)) == []
    assert judge_pulses([]) == []


@pytest.mark.parametrize(
    ("queued_ms", "kind"),
    [((15.0, 12.0, 0.1), "host_bound"), ((1.0, 2.0, 30.0), "communication_bound")],
)
def test_ranks_that_wait_for_cores_do_not_wait_for_the_network(queued_ms: tuple[float, ...], kind: str) -> None:
    pulses = [
        Pulse(rank, 1, 1, 101, "data", 0.0, 0, 0, 100, 4000.0, {"forward": 10.0}, 100, (40.0,) * 64, (1.0, 1.0, 1.0, queued) * 64)
        for rank, queued in enumerate(queued_ms)
    ]  # fmt: skip
    (found,) = judge_pulses(pulses)
    assert found.kind == kind
    if kind == "host_bound":
        assert (found.cause, round(found.numbers["share"], 2)) == ("cores", 0.12)
        assert "wait for cores" in found.what
