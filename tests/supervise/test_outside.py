"""A foreign script, seen from outside: which silence is a hang, and which end is a death."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.supervise.outside import OutsideWatch
from paceline.supervise.settings import Settings
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt


class MadeScript:
    """Stands for the eye; `live` lets time go by."""

    def __init__(self, tmp_path: Path, world_size: int, settings: Settings | None = None) -> None:
        attempt = Attempt(1, world_size, 1, 0.0, str(tmp_path), [])
        self.watch = OutsideWatch(RunLayout(tmp_path), attempt, settings or Settings())
        self.watch.eye = self  # type: ignore[assignment]
        self.output_size = 0
        self.step = None
        self.now = 0.0
        self.processes = [ProcessSight(100 + rank, "sleeping") for rank in range(world_size)]
        self.cores = [0.5] * world_size

    def look(self) -> Sight:
        ranks = tuple(RankSight(rank, "a", None, process) for rank, process in enumerate(self.processes))
        return Sight(self.now, self.now, 1, len(ranks), ranks)

    def live(self, seconds: float, line_every_s: float | None = None) -> list[Finding]:
        found = []
        next_line = self.now + (line_every_s or 1e9)
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            for rank, cores in enumerate(self.cores):
                process = self.processes[rank]
                state = process.state if process.state in ("zombie", "gone", "stopped") else "running"
                state = "sleeping" if state == "running" and cores < 0.3 else state
                self.processes[rank] = replace(process, state=state, cpu_s=process.cpu_s + 0.25 * cores)
            if self.now >= next_line:
                self.output_size += 10
                next_line += line_every_s or 1e9
            found += self.watch.look()[1]
        return found


def kinds(found: list[Finding]) -> set[tuple[str, str, int | None]]:
    return {(each.kind, each.severity, each.rank) for each in found}


@pytest.fixture
def script(tmp_path: Path) -> MadeScript:
    made = MadeScript(tmp_path, 2)
    assert made.live(20, line_every_s=0.5) == []
    return made


def test_a_rank_that_has_done_its_work_is_no_death_and_one_that_failed_is(script: MadeScript) -> None:
    script.processes[1] = replace(script.processes[1], state="zombie", exit_code=0)
    script.cores = [1.0, 0.0]
    assert script.live(4) == []
    assert kinds(script.live(20)) == {("slow", "note", None)}, "it saves what it has learned"
    script.cores[0] = 0.0
    assert kinds(script.live(60)) == {("slow", "note", None)}, "it sends it somewhere"
    script.processes[1] = replace(script.processes[1], exit_code=1)
    found = script.live(5)
    assert kinds(found) == {("dead_rank", "critical", 1)}
    assert "ended with exit code 1" in found[0].what


def test_an_end_that_nobody_saw_is_told_only_where_the_others_fall_silent(script: MadeScript) -> None:
    script.processes[1] = replace(script.processes[1], state="gone")
    assert script.live(20, line_every_s=0.5) == []
    assert kinds(script.live(10)) >= {("dead_rank", "warning", 1)}


@pytest.mark.parametrize("cores", [[1.0, 0.0], [0.0, 0.0]])
def test_a_silence_is_noted_and_a_stall_after_a_limit_of_its_own(script: MadeScript, cores: list[float]) -> None:
    """Rank 0 evaluates alone, or everybody waits for an upload."""
    script.cores = cores
    found = script.live(9)
    assert kinds(found) == {("slow", "note", None)}, "nobody is accused yet"
    assert ("rank 0 computes alone" if cores[0] else "no rank differs") in found[-1].what
    assert 5 <= found[0].numbers["held_s"] < 6, "noticed at once"
    script.output_size += 10
    assert script.live(20, line_every_s=0.5) == []
    assert script.live(9) == [], "the last one was as long, and ended"
    assert kinds(script.live(585)) == {("slow", "note", None)}
    found = script.live(10)
    assert kinds(found[-1:]) == {("stall", "critical", 0 if cores[0] else None)}
    assert found[-1].numbers["limit_s"] == 600


def test_who_knows_how_long_an_evaluation_takes_may_say_so(tmp_path: Path) -> None:
    script = MadeScript(tmp_path, 2, Settings(evaluate_limit_s=30))
    script.live(20, line_every_s=0.5)
    script.cores = [1.0, 0.0]
    assert kinds(script.live(29)) == {("slow", "note", None)}
    assert kinds(script.live(3)[-1:]) == {("stall", "critical", 0)}


def test_a_rank_that_was_brought_back_is_neither_dead_nor_as_silent_as_the_one_before(script: MadeScript) -> None:
    script.processes[1] = replace(script.processes[1], state="zombie", exit_code=7)
    assert script.live(1) == []
    script.processes = [ProcessSight(200, "sleeping"), None]  # type: ignore[list-item]
    script.cores = [0.5]
    assert script.live(4, line_every_s=0.5) == []
    script.processes[1] = ProcessSight(201, "sleeping")
    script.cores = [0.5, 0.5]
    assert script.live(10, line_every_s=0.5) == []
