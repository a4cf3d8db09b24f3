from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.supervise.glance import Glances
from paceline.supervise.view import render_line, render_table
from paceline.telemetry.events import EventLog
from paceline.telemetry.heartbeat import BeatWriter
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import Pulse
from paceline.telemetry.run_file import Attempt

ATTEMPT = Attempt(2, 3, 1, 0.0, "", [])


def sight(at: float, steps: tuple[int, ...], phases: tuple[str, ...] = ("backward", "forward")) -> Sight:
    """Rank 2 is on another host."""
    ranks = [
        RankSight(
            rank,
            "a",
            Pulse(
                rank, 40 + rank, 2, step, phase, 1000.0 + at - 0.5, 7, 6, waits=step, waited_ms=step * (10.0 - 8 * rank)
            ),
            ProcessSight(40 + rank, "stopped" if rank else "sleeping", 1.0, 0.5),
        )
        for rank, (step, phase) in enumerate(zip(steps, phases, strict=True))
    ]
    return Sight(1000.0 + at, at, 2, 3, (*ranks, RankSight(2, "a", None, None)))


def test_a_glance_has_pace_wait_and_time_left_and_ranks_of_other_hosts(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    EventLog(layout.events, "rank 0", 2).write("plan", total_steps=1000)
    beats = BeatWriter(layout.heartbeat(2), 2, 2)
    beats.write({"step": 19, "phase": "data", "wait_ms": 3.5, "memory_gib": 1.25, "gpu": {"util": 97, "power_w": 410}})
    with open(layout.heartbeat(2), "ab") as file:
        file.write(b'{"v":1,"ti')  # torn
    glances = Glances(layout, ATTEMPT)
    found = Finding("stopped", "rank 1 is stopped", "kill -CONT 41", severity="critical", rank=1)
    first = glances.take(sight(0.0, (10, 10)), [])
    assert first["left_s"] is None, "one look tells no pace"
    glance = glances.take(sight(4.0, (20, 20)), [found])
    assert (glance["step"], glance["total_steps"], glance["steps_per_s"], glance["left_s"]) == (19, 1000, 2.5, 392.4)
    one, two, three = glance["ranks"]
    assert (one["wait_ms"], two["wait_ms"], three["wait_ms"]) == (10.0, 2.0, 3.5)
    assert (one["for_s"], one["state"], two["state"]) == (0.5, "sleeping", "stopped")
    assert (three["step"], three["phase"], three["memory_gib"], three["gpu"]["util"]) == (19, "data", 1.25, 97)
    assert glance["findings"][0]["rank"] == 1

    output = io.StringIO()
    Console(file=output, width=140).print(render_table(glance))
    lines = output.getvalue().splitlines()
    assert lines[0].split() == ["attempt", "2", "step", "19/1,000", "2.5", "steps/s", "6:32", "left"]
    assert lines[1].strip() == "stopped: rank 1 is stopped"
    assert " ".join(lines[3].split()) == "0 a 20 backward 0.5 s 2.5 10.0 ms 0.50 GiB - sleeping"
    assert "97 % 410 W" in lines[5]
    line = render_line(glance)
    assert "rank 0: backward of step 20" in line
    assert "rank 1: forward of step 20" in line


def test_ranks_in_one_place_are_one_phrase_and_a_start_is_a_start(tmp_path: Path) -> None:
    glances = Glances(RunLayout(tmp_path), ATTEMPT)
    nobody = Sight(time.time(), 0.0, 2, 2, tuple(RankSight(rank, "a", None, None) for rank in range(2)))
    assert render_line(glances.take(nobody, [])) == "attempt 2  starting  no pulse yet"


def test_a_script_without_pulses_is_at_the_step_that_its_output_told(tmp_path: Path) -> None:
    script = Sight(time.time(), 0.0, 2, 1, (RankSight(0, "a", None, ProcessSight(40, "running")),))
    glance = Glances(RunLayout(tmp_path), ATTEMPT).take(script, [], told_step=490)
    assert glance["step"] == 490
    assert render_line(glance) == "attempt 2  step 490  no pulse"


def test_an_evaluation_is_no_pace_and_a_hang_is(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    EventLog(layout.events, "rank 0", 2).write("plan", total_steps=1000)
    glances = Glances(layout, ATTEMPT)

    def take(at: float, step: int, phase: str, since: float, steps_s: float) -> dict[str, Any]:
        pulse = Pulse(0, 40, 2, step, phase, 1000 + since, 0, 0, spent_s={"forward": steps_s, "evaluate": 0.0})
        return glances.take(Sight(1000 + at, at, 2, 1, (RankSight(0, "a", pulse, None),)), [])

    for second in range(20):
        take(second, 10 * second, "forward", second, second)
    for second in range(20, 60):
        glance = take(second, 200, "evaluate", 20, 20)
        assert (glance["steps_per_s"], glance["left_s"]) == (10.0, 80.0)
    for second in range(60, 80):
        glance = take(second, 200, "forward", 60, 20)
    assert not glance["steps_per_s"]


def test_records_of_another_version_and_files_that_are_none_are_shown_as_nothing(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    EventLog(layout.events, "rank 0", 2).write("plan", total_steps="many")
    strange = {"v": 99, "attempt": 2, "step": "many", "phase": 7, "pid": None, "gpu": {"util": "much"}, "wait_ms": [1]}
    layout.heartbeat(2).parent.mkdir(exist_ok=True)
    layout.heartbeat(2).write_text(json.dumps(strange) + "\n")
    layout.heartbeat(1).mkdir()
    glances = Glances(layout, ATTEMPT)
    glances.take(sight(0.0, (10, 10)), [])
    glance = glances.take(sight(4.0, (20, 20)), [])
    assert (glance["step"], glance["total_steps"], glance["left_s"]) == (20, None, None)
    rank = glance["ranks"][2]
    assert (rank["step"], rank["wait_ms"], rank["memory_gib"], rank["gpu"]) == (None, None, None, {"util": None})
    output = io.StringIO()
    Console(file=output, width=140).print(render_table(glance))
    assert output.getvalue().splitlines()[-1].split()[:2] == ["2", "-"]
    assert "step 20" in render_line(glance)


def test_where_not_all_ranks_have_room_those_that_matter_are_shown(tmp_path: Path) -> None:
    whole = Glances(RunLayout(tmp_path), ATTEMPT).take(sight(0.0, (10, 10)), [])
    ranks = [whole["ranks"][0] | {"rank": rank, "step": 50 - (rank == 7), "wait_ms": 90.0 - rank} for rank in range(64)]
    found = Finding("stopped", "rank 3 is stopped", "kill -CONT 41", severity="critical", rank=3).to_record()
    output = io.StringIO()
    Console(file=output, width=80).print(render_table(whole | {"ranks": ranks, "findings": [found]}, height=12))
    lines = output.getvalue().splitlines()
    assert len(lines) <= 12
    assert [line.split()[0] for line in lines[3:-1]] == ["3", "7", "61", "62", "63"]
    assert lines[-1].strip() == "and 59 more ranks, none of them behind these"
