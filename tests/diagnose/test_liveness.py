"""Whether a run is alive, from tables of sights: who is accused, when, and when nobody is."""

from __future__ import annotations

import pytest

from paceline.diagnose.limits import Limits
from paceline.diagnose.liveness import Liveness
from tests.diagnose.sights import START, Made, names


def started(world_size: int = 3, steps: int = 20, step_s: float = 0.05) -> tuple[Made, Liveness]:
    run, liveness = Made(world_size), Liveness(Limits())
    assert run.train(steps, liveness, step_s) == []
    return run, liveness


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_the_rank_that_is_behind_is_named_within_the_floor(phase: str) -> None:
    run, liveness = started()
    run.move(1, 21, phase)
    run.move([0, 2], 21 if phase != "optimizer" else 22, "backward" if phase != "backward" else "optimizer")
    (found,), after = run.watch(liveness, 30)
    assert (found.kind, found.rank, found.cause, found.phase, found.step) == ("stall", 1, phase, phase, 21)
    assert found.severity == "critical"
    assert found.since == pytest.approx(START + 1.0)
    assert after is not None
    assert 5 <= after <= 5.5


def test_a_stopped_process_outranks_everything() -> None:
    run, liveness = started()
    run.move(0, 21, "data")
    run.move([1, 2], 21, "backward")
    run.become(2, "stopped")
    found, after = run.watch(liveness, 30)
    assert names(found) == {"stopped": 2}
    assert "kill -CONT 1002" in found[0].do
    assert after is not None
    assert after <= 1.5
    run.become(2, "sleeping")
    run.everybody(22, "data")
    run.wait()
    assert liveness.see(run.sight()) == []


def test_a_dead_rank_is_named_at_once_and_its_victims_are_not() -> None:
    run, liveness = started()
    run.become(1, "gone", exit_code=-9)
    found, after = run.watch(liveness, 30)
    assert names(found) == {"dead_rank": 1}
    assert (found[0].cause, after) == ("sigkill", 0.25)
    run.become(0, "gone", exit_code=1)
    run.become(2, "gone", exit_code=-15)
    assert names(liveness.see(run.sight())) == {"dead_rank": 1}


def test_ranks_that_left_after_their_last_word_are_not_dead() -> None:
    run, liveness = started()
    run.everybody(20, "end")
    for rank in range(3):
        run.become(rank, "gone")
    assert run.watch(liveness, 60) == ([], None)
