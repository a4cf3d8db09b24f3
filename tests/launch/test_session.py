"""Sessions with a stand-in for the agent: a small script that does what the workers do with the files of a run."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from paceline.errors import PacelineError, PreflightError
from paceline.launch import marked
from paceline.launch import session as sessions
from paceline.launch.hosts.message import Report
from paceline.launch.hosts.parts import Lost, Parts
from paceline.launch.progress import Progress
from paceline.launch.session import Peers, Session, Supervision
from paceline.launch.signals import OperatorSignals
from paceline.launch.verdict import Verdict
from tests.launch.test_claim import claim
from tests.launch.test_process import is_alive

WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from paceline.errors import RankLostError
from paceline.telemetry.events import EventLog
from paceline.telemetry.failure import format_failure
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.stop_request import read_stop_request
mode, root, pulses = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
(root / "pids").write_text(f"{os.getpid()} {child.pid}")
layout = RunLayout(root)
events, pulse = EventLog(layout.events, "rank 0", 1), PulseWriter(pulses, 0, 1)
if mode == "failing":
    print(format_failure(RankLostError("rank 1 has gone", "logs", "look").to_record() | {"rank": 0}), flush=True)
events.write("plan", world_size=1, total_steps=1000, steps_per_epoch=10, total_samples=10, start_step=0)
for step in range(1, 2000):
    pulse.beat(step, "forward")
    time.sleep(0.02)
    request = read_stop_request(layout.stop_request, 1)
    if request and mode == "polite":
        events.write("end", state="stopped", reason=request.reason, step=step)
        break
    if mode == "quick" and step == 3:
        events.write("end", state="finished", reason="finished", step=3)
        break
"""


def run_session(
    root: Path,
    mode: str,
    signals: OperatorSignals,
    examine: Callable[[], PacelineError | None] | None = None,
    supervise: Callable[[], Supervision] | None = None,
    peers: Peers | None = None,
) -> tuple[Verdict, str, list[int]]:
    claimed = claim(root)
    source = str(Path(__file__).parents[2])
    environment = os.environ | {"TORCHELASTIC_RUN_ID": f"test-{root}", "PYTHONPATH": source}
    command = [sys.executable, "-c", WORKER, mode, str(root), str(claimed.pulses)]
    output = io.StringIO()
    session = Session(claimed, command, environment, f"test-{root}", signals, None, examine, supervise, peers)
    with Progress(claimed.layout, 1, Console(file=output, width=120), claimed.pulses) as progress:
        verdict = session.follow(progress)
    claimed.finish(verdict.state, verdict.reason, verdict.step, verdict.exit_code)
    claimed.release()
    assert claimed.layout.environment.exists()
    return verdict, output.getvalue(), [int(pid) for pid in (root / "pids").read_text().split()]


def signal_when_stepping(root: Path, *numbers: int) -> threading.Thread:
    """Sends signals to this process once the stand-in has begun, the second after the first had its effect."""

    def send() -> None:
        events, request = root / "events.jsonl", root / "stop_request.json"
        for number, awaited in zip(numbers, (events, request), strict=False):
            while not awaited.exists():
                threading.Event().wait(0.02)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.timeout(60)
def test_an_attempt_that_just_ends(tmp_path: Path) -> None:
    with OperatorSignals() as signals:
        verdict, output, pids = run_session(tmp_path, "quick", signals)
    assert (verdict.state, verdict.exit_code, verdict.step) == ("finished", 0, 3)
    assert "1,000 steps" in output
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "ctrl_c"), (signal.SIGTERM, "sigterm")])
def test_the_first_signal_asks_the_ranks_to_stop(tmp_path: Path, number: int, reason: str) -> None:
    with OperatorSignals() as signals:
        thread = signal_when_stepping(tmp_path, number)
        verdict, output, pids = run_session(tmp_path, "polite", signals)
        thread.join()
    assert (verdict.state, verdict.reason, verdict.exit_code) == ("stopped", reason, 130)
    assert "stop at the next step" in output
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.timeout(60)
def test_the_second_signal_kills_and_nothing_is_left(tmp_path: Path) -> None:
    with OperatorSignals() as signals:
        thread = signal_when_stepping(tmp_path, signal.SIGINT, signal.SIGINT)
        verdict, output, pids = run_session(tmp_path, "stubborn", signals)
        thread.join()
    assert (verdict.state, verdict.reason, verdict.exit_code) == ("stopped", "ctrl_c", 130)
    assert verdict.step is not None
    assert "killing" in output
    assert not any(psutil.pid_exists(pid) and is_alive(pid) for pid in pids)


@pytest.mark.timeout(60)
def test_a_refusal_ends_what_was_started_meanwhile(tmp_path: Path) -> None:
    def examine() -> PacelineError:
        while not (tmp_path / "pids").exists():
            threading.Event().wait(0.02)
        return PreflightError("open files: 20", "preflight", "ulimit -n 1024")

    with OperatorSignals() as signals:
        verdict, _, pids = run_session(tmp_path, "stubborn", signals, examine)
    assert (verdict.state, verdict.reason, verdict.exit_code) == ("failed", "open files: 20", 3)
    assert isinstance(verdict.error, PreflightError)
    assert not verdict.is_worth_restarting
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.timeout(60)
def test_an_examination_that_finds_nothing_changes_nothing(tmp_path: Path) -> None:
    with OperatorSignals() as signals:
        verdict, _, _ = run_session(tmp_path, "quick", signals, lambda: None)
    assert (verdict.state, verdict.exit_code) == ("finished", 0)


class Halting:
    """A supervisor that has ended the ranks, or so it says."""

    def __init__(self, action: str) -> None:
        finding = {"kind": "stall", "what": "rank 0 stands still", "rank": 0}
        self.incidents = [{"finding": finding, "place": "incidents/0001-stall-rank0", "action": action}]

    def check(self) -> None: ...

    def close(self, *, is_hasty: bool = False) -> None: ...


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("mode", "action", "exit_code"), [("failing", "none", 4), ("stubborn", "restarted", 5)])
def test_a_rank_that_cannot_be_killed_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, action: str, exit_code: int
) -> None:
    """Its agent waits for it for ever, as torchrun does."""
    kill = psutil.Process.kill

    def kill_others(process: psutil.Process) -> None:
        if str(process.pid) not in (tmp_path / "pids").read_text().split()[1:]:
            kill(process)

    def wait_for_the_child() -> Halting:
        while not (tmp_path / "pids").exists():
            threading.Event().wait(0.02)
        return Halting(action)

    monkeypatch.setattr(psutil.Process, "kill", kill_others)
    monkeypatch.setattr(marked, "_GONE_S", 0.5)
    monkeypatch.setattr(sessions, "ENDING_S", 0.2)
    with OperatorSignals() as signals:
        verdict, output, (agent, rank) = run_session(tmp_path, mode, signals, supervise=wait_for_the_child)
    try:
        assert verdict.exit_code == exit_code
        assert not verdict.is_worth_restarting, "beside one that still has its files"
        assert f"could not end process {rank} (sleeping: SIGKILL did not end it" in " ".join(output.split())
        assert not is_alive(agent)
    finally:
        os.kill(rank, signal.SIGKILL)


class Others:
    """Other hosts, to whom something happens after some looks at them."""

    def __init__(self, parts: Parts, *, is_over: bool = False, wants_resize: str = "") -> None:
        self._parts = parts
        self._happens = (is_over, wants_resize)
        self._looks = 0
        self.finished: list[tuple[bool, bool]] = []

    @property
    def is_over(self) -> bool:
        return self._looks > 5 and self._happens[0]

    @property
    def wants_resize(self) -> str:
        return self._happens[1] if self._looks > 5 else ""

    def poll(self) -> None:
        self._looks += 1

    def finish(self, why: str, *, is_well: bool, is_hasty: bool = False) -> Parts:
        self.finished.append((is_well, is_hasty))
        return self._parts


@pytest.mark.timeout(60)
def test_a_lost_host_ends_our_ranks_and_is_the_reason(tmp_path: Path) -> None:
    others = Others(Parts(lost=[Lost(1, "host b with rank 1", "it closed the connection")]), is_over=True)
    with OperatorSignals() as signals:
        verdict, _, pids = run_session(tmp_path, "stubborn", signals, peers=others)
    assert verdict.is_host_lost
    assert verdict.reason == "host b with rank 1 was lost: it closed the connection"
    assert others.finished == [(False, False)]
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.timeout(60)
def test_a_host_that_has_come_stops_our_ranks_at_a_step(tmp_path: Path) -> None:
    others = Others(Parts({1: Report(1, 0)}), wants_resize="host b has come")
    with OperatorSignals() as signals:
        verdict, output, _ = run_session(tmp_path, "polite", signals, peers=others)
    assert (verdict.state, verdict.reason, verdict.exit_code) == ("stopped", "resize", 0)
    assert "host b has come: all ranks stop at the next step" in output
    assert others.finished == [(True, False)]


@pytest.mark.timeout(60)
def test_whoever_wants_the_end_is_not_overruled_by_a_host_that_has_come(tmp_path: Path) -> None:
    others = Others(Parts(), wants_resize="host b has come")
    with OperatorSignals() as signals:
        signals.asked = "ctrl_c"
        verdict, _, _ = run_session(tmp_path, "polite", signals, peers=others)
    assert (verdict.state, verdict.reason, verdict.exit_code) == ("stopped", "ctrl_c", 130)


@pytest.mark.timeout(60)
def test_a_process_that_another_host_could_not_end_stands_against_another_attempt(tmp_path: Path) -> None:
    report = Report(1, 1, exits=[[1, -9, 4711]], left="could not end process 4712")
    others = Others(Parts({1: report}), is_over=True)
    with OperatorSignals() as signals:
        verdict, _, _ = run_session(tmp_path, "stubborn", signals, peers=others)
    assert "rank 1 (pid 4711) was killed by signal 9" in verdict.reason
    assert verdict.has_left
    assert not verdict.is_worth_restarting
