"""Which attempt follows which, without a process: attempts end as they are told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli import attempts
from paceline.cli.attempts import run_attempts
from paceline.errors import RankLostError, RendezvousError
from paceline.launch.signals import OperatorSignals
from paceline.launch.verdict import Verdict
from paceline.telemetry.layout import RunLayout

pytestmark = pytest.mark.timeout(30)


class StandIn:
    """A claim whose attempts are only counted."""

    def __init__(self, layout: RunLayout, attempt: int = 1) -> None:
        self.layout, self.attempt = layout, attempt

    def finish(self, *words: object) -> None:
        pass

    def begin_again(self, description: object, seats: object) -> StandIn:
        return StandIn(self.layout, self.attempt + 1)


@dataclass
class Together:
    """A leader to whom somebody always comes back, until nobody does."""

    calls: int = 0
    most_calls: int = 10**6

    def gather(self, signals: object, **how: Any) -> None:
        self.calls += 1
        if self.calls > self.most_calls:
            raise RendezvousError("not enough hosts came in time: 1 of 2 hosts here", "127.0.0.1:1", "start them")

    def seat(self) -> list[object]:
        return []

    def describe_seats(self) -> str:
        return "2 hosts"


def lost(step: int | None) -> Verdict:
    error = RankLostError("host b was lost", "127.0.0.1", "look there")
    return Verdict("failed", "host b was lost", step, 4, error, is_host_lost=True)


@dataclass
class Stage:
    """Where attempts end as in `ends`, and then for ever as `last`."""

    root: Path
    ends: list[Verdict] = field(default_factory=list)
    last: Verdict = field(default_factory=lambda: lost(None))

    def run(self, leader: Together) -> tuple[int, Verdict]:
        supervise = SimpleNamespace(max_restarts=0)
        plan = SimpleNamespace(job=SimpleNamespace(config=SimpleNamespace(supervise=supervise)), description=None)
        claim = StandIn(RunLayout(self.root))
        last, verdict = run_attempts(plan, claim, OperatorSignals(), False, None, leader)  # type: ignore[arg-type]
        return last.attempt, verdict


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)

    def end(*words: object, **named: object) -> Verdict:
        return made.ends.pop(0) if made.ends else made.last

    monkeypatch.setattr(attempts, "run_attempt", end)
    return made


def test_hosts_that_come_and_go_for_ever_are_given_up(stage: Stage) -> None:
    leader = Together()
    attempt, verdict = stage.run(leader)
    assert (attempt, leader.calls) == (attempts._MOST_REGROUPS + 1, attempts._MOST_REGROUPS)
    assert verdict.error is not None
    assert "host b was lost; not restarted again: 10 attempts in turn gained no step" in verdict.error.problems[0].what
    assert verdict.exit_code == 4


def test_a_step_that_is_gained_begins_the_count_anew(stage: Stage) -> None:
    stage.ends = [lost(None)] * 9 + [lost(5)] + [lost(None)] * 9 + [lost(7)]
    stage.last = Verdict("finished", "length", 8, 0)
    attempt, verdict = stage.run(Together())
    assert (attempt, verdict.state) == (21, "finished")


def test_the_same_step_again_and_again_is_no_gain(stage: Stage) -> None:
    stage.last = lost(5)
    attempt, _ = stage.run(Together())
    assert attempt == attempts._MOST_REGROUPS + 1


def test_a_lost_host_is_no_restart_and_nobody_who_comes_is_the_end(stage: Stage) -> None:
    attempt, verdict = stage.run(Together(most_calls=2))
    assert (attempt, verdict.state, verdict.exit_code) == (3, "failed", 4)
    assert verdict.error is not None
    assert [each.what for each in verdict.error.problems][-1].startswith("not enough hosts came in time")
