"""`paceline train` and its supervisor, with stand-ins for the ranks: two small processes with pulses, one of which stops getting on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from paceline.cli.main import run_command
from paceline.files import read_json
from paceline.supervise.py_spy import find_program
from paceline.telemetry.policy_request import PolicyWish, read_policy_request
from paceline.telemetry.reader import read_run
from paceline.telemetry.stop_request import read_stop_request, write_stop_request

AGENT = """
import os, signal, sys, time
from pathlib import Path
from paceline.telemetry.events import EventLog
from paceline.telemetry.heartbeat import BeatWriter
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.run_file import load_run_file
from paceline.telemetry.stop_request import read_stop_request
stuck_in, out, attempt = set(sys.argv[1].split(",")), sys.argv[2], int(sys.argv[3])
layout = RunLayout(Path(out))
pulses = Path(load_run_file(layout.root).attempts[-1].pulses)
is_stuck = str(attempt) in stuck_in
(layout.root / "asked_at_start").write_text(str(read_stop_request(layout.stop_request, attempt)))
pids = []
for rank in (0, 1):
    pids.append(os.fork())
    if pids[-1] == 0:
        pulse, events = PulseWriter(pulses, rank, attempt), EventLog(layout.events, f"rank {rank}", attempt)
        BeatWriter(layout.heartbeat(rank), rank, attempt).write({"step": 0, "phase": "start"})
        with open(layout.root / "pids", "a") as file:
            file.write(f"{os.getpid()} ")
        if rank == 0:
            events.write("plan", world_size=2, total_steps=25, steps_per_epoch=5, total_samples=10, start_step=0)
        for step in range(1, 26):
            for phase in ("data", "forward", "backward"):
                pulse.beat(step, phase)
                time.sleep(0.01)
                if is_stuck and step == 25 and phase == ("forward" if rank else "backward"):
                    time.sleep(600)
        if rank == 0:
            events.write("end", state="finished", reason="length", step=25)
        pulse.beat(25, "end")
        os._exit(0)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
sys.exit(0 if codes == [0, 0] else 1)
"""


@pytest.fixture
def stuck_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """stuck_in("1,2"): rank 1 hangs in these attempts."""
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    attempts = [""]

    def command(nproc: int, arguments: Sequence[str], *, rendezvous_id: str, scratch: Path, group: None) -> list[str]:
        return [sys.executable, str(script), attempts[0] or "-", arguments[2], arguments[4]]

    monkeypatch.setattr("paceline.cli.attempt.agent_command", command)
    return lambda text: attempts.__setitem__(0, text)


def train(root: Path, *more: str) -> int:
    arguments = ["train", "sasrec", "--nproc", "2", "--gpus", "", "--out", str(root), "supervise.stall_floor_s=0.6"]
    return run_command([*arguments, *more])


@pytest.mark.timeout(90)
@pytest.mark.slow
def test_a_stall_is_restarted_and_given_up_when_nothing_is_gained(tmp_path: Path, stuck_in, capfd) -> None:
    stuck_in("1")
    assert train(tmp_path / "once", "supervise.policy=restart", "--max-restarts", "2") == 0
    run = read_run(tmp_path / "once")
    assert [(a.state, a.exit_code) for a in run.run.attempts] == [("failed", 5), ("finished", 0)]
    (event,) = run.events_of("restart")
    assert event["why"].startswith("halted: the run stands still: rank 1")
    assert [event["action"] for event in run.events_of("incident")] == ["none", "restarted"]

    root = tmp_path / "always"
    stuck_in("1,2,3,4")
    capfd.readouterr()
    assert train(root, "supervise.policy=restart", "--max-restarts", "5") == 5
    captured = capfd.readouterr()
    run = read_run(root)
    assert len(run.run.attempts) == 2, "the second got no further than the first"
    assert "HaltedError: the run stands still: rank 1 in forward of step 25" in captured.err
    assert "not restarted again: restart 1 gained no step" in captured.err
    assert "where: incidents/0002-stall-rank1" in captured.err
    assert "do:    read incidents/0002-stall-rank1/report.md" in captured.err
    assert "stall: the run stands still" in captured.out
    assert (run.run.state, run.run.attempts[1].exit_code) == ("failed", 5)
    assert run.run.reason.startswith("halted: the run stands still: rank 1")
    report = read_json(root / "incidents" / "0001-stall-rank1" / "report.json")
    assert (report["policy"], report["action"]) == ("restart", "restarted")
    silent = set() if find_program() is not None else {"0", "1"}
    assert report["stacks"]["missing"].keys() == silent, "a stand-in does not answer, and nobody signals it"
    assert not any(psutil.pid_exists(int(pid)) for pid in (root / "pids").read_text().split())

    # What was asked of an attempt, or wished for it, never outlives it.
    write_stop_request(run.layout.stop_request, 2, "halted", "a supervisor")
    wish = PolicyWish(run.layout.policy_requests, 2, "halt", "a watcher")
    stuck_in("")
    assert train(root, "supervise.policy=note") == 0
    assert (root / "asked_at_start").read_text() == "None"
    assert read_stop_request(run.layout.stop_request, 3) is None
    assert read_policy_request(run.layout.policy_requests, 3) is None
    wish.withdraw()
    assert [attempt.state for attempt in read_run(root).run.attempts] == ["failed", "failed", "finished"]
    assert len(list((root / "incidents").iterdir())) == 2


@pytest.mark.timeout(60)
def test_a_policy_that_could_never_act_is_refused_and_one_without_a_supervisor_is_said(
    tmp_path: Path, stuck_in, capfd
) -> None:
    assert train(tmp_path / "run", "supervise.policy=restart") == 2
    assert "supervise.policy=restart cannot be combined with supervise.max_restarts=0" in capfd.readouterr().err
    assert run_command(["explain", "sasrec", "supervise.enabled=false", "supervise.policy=halt", "--no-sizes"]) == 0
    assert "supervise.enabled=false" in capfd.readouterr().out
    assert train(tmp_path / "run", "supervise.enabled=false") == 0
    assert not (tmp_path / "run" / ".supervisor.lock").exists()
