"""Incidents that come and go."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from paceline.diagnose.finding import Finding
from paceline.files import read_json
from paceline.supervise import announcer, supervisor
from paceline.supervise.settings import Settings
from paceline.supervise.supervisor import Supervisor
from paceline.telemetry.reader import read_run

WAIT = "pulse.beat(1, 'forward'); time.sleep(300)"


class Stage:
    """A supervisor that finds what a test says."""

    def __init__(self, run, settings: Settings) -> None:
        self.run = run
        self.supervisor = Supervisor(run.layout, run.run, run.attempt, settings)
        self.look = self.supervisor.watch.look

    def play(self, *found: Finding) -> None:
        self.supervisor.watch.look = lambda: (self.look()[0], list(found))
        self.supervisor.poll()

    def come_and_go(self, finding: Finding, times: int) -> None:
        for _ in range(times):
            self.play(finding)
            self.play()

    def reports(self) -> list[dict]:
        return [read_json(path) for path in sorted(self.run.layout.incidents.glob("*/report.json"))]

    def events(self) -> list[dict]:
        return read_run(self.run.layout.root).events_of("incident")


def stall(rank: int, held_s: float = 5.0, **numbers: float) -> Finding:
    numbers = {"held_s": held_s, "limit_s": 5.0, **numbers}
    return Finding("stall", f"rank {rank} stands still", "look", severity="critical", rank=rank, numbers=numbers)


@pytest.fixture
def stage(fake_run):
    made = []

    def make(run=None, settings: Settings | None = None) -> Stage:
        if run is None:
            run = fake_run(1)
            run.start(0, WAIT)
        made.append(Stage(run, settings or Settings()))
        return made[-1]

    yield make
    for each in made:
        each.supervisor.close()


@pytest.mark.timeout(60)
def test_what_comes_and_goes_is_one_incident_per_kind_and_rank(stage) -> None:
    desync = Finding("desync", "parameters differ on rank 0", "look", severity="critical", rank=0)
    played = stage()
    played.come_and_go(desync, 40)
    (report,) = played.reports()
    assert (report["id"], report["times"]) == ("0001", 40)
    assert report["noticed"] < report["returned"] <= report["ended"]
    assert [event["times"] for event in played.events()] == [1, 2, 3, 4, 5], "then once a minute"
    page = (played.run.layout.incidents / "0001-desync-rank0" / "report.md").read_text()
    assert "this is time 40" in page
    other = Finding("desync", "parameters differ on rank 1", "look", severity="critical", rank=1)
    played.come_and_go(other, 2)
    assert [(report["finding"]["rank"], report["times"]) for report in played.reports()] == [(0, 40), (1, 2)]


@pytest.mark.timeout(60)
def test_one_that_came_often_is_told_when_it_stays_and_before_it_is_acted_upon(stage, monkeypatch) -> None:
    monkeypatch.setattr(announcer, "_OFTEN", 1)
    played = stage()
    played.come_and_go(stall(0), 2)
    assert len(played.events()) == 1
    assert played.reports()[0]["stacks"]["taken_s"] is None, "those of another time say nothing of this one"
    played.play(stall(0))
    monkeypatch.setattr(announcer, "_AGAIN_S", 0.0)
    time.sleep(0.01)
    played.play(stall(0))
    assert [event["times"] for event in played.events()] == [1, 3]
    assert played.reports()[0]["stacks"]["clusters"][0]["ranks"] == [0]

    monkeypatch.setattr(announcer, "_AGAIN_S", 60.0)
    played = stage(settings=Settings(policy="halt", stall_floor_s=1.0))
    played.come_and_go(stall(0), 2)
    played.play(stall(0))
    played.play(stall(0, held_s=7.0))
    assert [(event["times"], event["action"]) for event in played.events()][1:] == [(3, "none"), (3, "killed")]
    assert played.reports()[0]["stacks"]["clusters"][0]["ranks"] == [0]
    assert played.run.processes[0].wait(10) == -9


@pytest.mark.timeout(60)
def test_a_rank_that_only_the_stacks_name_makes_no_other_incident(stage, monkeypatch) -> None:
    monkeypatch.setattr(announcer, "_OFTEN", 1)
    monkeypatch.setattr(supervisor, "weigh_stacks", lambda finding, clusters: replace(finding, rank=0))
    played = stage()
    played.come_and_go(replace(stall(0), rank=None), 3)
    (report,) = played.reports()
    assert report["times"] == 3
    assert [event["incident"] for event in played.events()] == ["0001-stall-rank0"]


@pytest.mark.timeout(60)
def test_the_next_supervisor_reopens_what_had_ended(stage) -> None:
    first = stage()
    first.come_and_go(stall(0), 2)
    second = stage(first.run)
    second.play()
    second.play(stall(0))
    (report,) = second.reports()
    assert (report["times"], report["ended"]) == (3, None)
    assert report["stacks"]["taken_s"] is not None


@pytest.mark.timeout(60)
def test_a_policy_waits_for_the_limit_that_is_its_own(stage) -> None:
    """An evaluation that is noticed after seconds may be a full test: it is told of, and killed much later."""
    played = stage(settings=Settings(policy="halt", stall_floor_s=1.0))
    for held_s in (5.0, 7.0, 30.9):
        played.play(stall(0, held_s, act_s=30.0))
    assert [report["action"] for report in played.reports()] == ["none"]
    played.play(stall(0, 31.0, act_s=30.0))
    assert [report["action"] for report in played.reports()] == ["killed"]
    assert played.run.processes[0].wait(10) == -9
