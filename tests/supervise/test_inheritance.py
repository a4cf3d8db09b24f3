"""A supervisor that was killed while an incident was open, and the next one."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from paceline.files import read_json, read_records, write_json
from paceline.supervise import inheritance
from paceline.supervise.settings import Settings
from paceline.supervise.supervisor import Supervisor

MOVE = "for step in range(1, 31):\n    pulse.beat(step, 'data'); time.sleep(0.01); pulse.beat(step, 'forward')\n"
NOTE = Settings(stall_floor_s=0.5)


def watch(supervisor: Supervisor, until) -> None:
    deadline = time.monotonic() + 30
    while not until():
        assert time.monotonic() < deadline, supervisor.findings
        supervisor.poll()
        supervisor.wait(0.05)


def reports(run) -> list[dict]:
    return [read_json(path) for path in sorted(run.layout.incidents.glob("*/report.json"))]


@pytest.mark.timeout(60)
def test_the_next_supervisor_goes_on_with_an_incident_and_the_next_attempt_closes_it(fake_run) -> None:
    run = fake_run(1)
    run.start(0, MOVE + "time.sleep(300)")
    killed = Supervisor(run.layout, run.run, run.attempt, NOTE)
    watch(killed, lambda: killed.incidents)
    (before,) = reports(run)
    second = Supervisor(run.layout, run.run, run.attempt, NOTE)
    watch(second, lambda: second.incidents)
    assert reports(run) == [before], "the same one, and nothing in it is written anew"
    assert len(read_records(run.layout.events)) == 1
    third = Supervisor(run.layout, run.run, run.attempt, replace(NOTE, policy="halt"))
    watch(third, lambda: third.incidents and third.incidents[0].action == "killed")
    (after,) = reports(run)
    assert (after["id"], after["noticed"], after["action"]) == ("0001", before["noticed"], "killed")
    assert (after["ranks"], after["stacks"]) == (before["ranks"], before["stacks"])
    assert after["ended"] is not None
    assert run.processes[0].wait(10) == -9

    (path,) = run.layout.incidents.glob("*/report.json")
    write_json(path, before)
    later = Supervisor(run.layout, run.run, replace(run.attempt, attempt=2), NOTE)
    (closed,) = reports(run)
    assert closed["ended"] >= before["noticed"]
    for supervisor in (killed, second, third, later):
        supervisor.close()


@pytest.mark.timeout(60)
def test_one_that_was_killed_while_it_halted_is_brought_to_its_end(fake_run) -> None:
    run = fake_run(2)
    for rank in range(2):
        run.start(rank, MOVE + "time.sleep(300)")
    first = Supervisor(run.layout, run.run, run.attempt, NOTE)
    watch(first, lambda: first.incidents)
    (path,) = run.layout.incidents.glob("*/report.json")
    write_json(path, read_json(path) | {"action": "killed"})
    run.processes[0].kill()
    second = Supervisor(run.layout, run.run, run.attempt, NOTE)
    watch(second, lambda: all(process.poll() is not None for process in run.processes))
    for _ in range(5):
        second.poll()
    (report,) = reports(run)
    assert report["ended"] is not None, "and the deaths are no incident of their own"
    first.watch.close()
    second.close()


@pytest.mark.timeout(60)
def test_what_does_not_hold_any_more_is_closed_and_what_is_damaged_left_alone(fake_run, monkeypatch) -> None:
    run = fake_run(1)
    run.start(
        0,
        MOVE
        + "while not (root / 'go').exists(): time.sleep(0.01)\nwhile True:\n    pulse.beat(31 + int(time.monotonic() * 50), 'data'); time.sleep(0.01)",
    )
    first = Supervisor(run.layout, run.run, run.attempt, NOTE)
    watch(first, lambda: first.incidents)
    for number, text in enumerate(["", "[]", "{}", '{"v": 1, "ended": null, "finding": {}}'], 2):
        (run.layout.incidents / f"000{number}-x").mkdir()
        (run.layout.incidents / f"000{number}-x" / "report.json").write_text(text)
    (run.layout.root / "go").touch()
    monkeypatch.setattr(inheritance, "_WAIT_S", 0.5)
    second = Supervisor(run.layout, run.run, run.attempt, NOTE)
    path = run.layout.incidents / "0001-stall-rank0" / "report.json"
    assert read_json(path)["ended"] is None
    watch(second, lambda: read_json(path)["ended"] is not None)
    assert second.incidents == []
    first.watch.close()
    second.close()
