from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.errors import OccupiedError
from paceline.files import LineWriter
from paceline.launch.orphans import end_orphans, find_orphans
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile

SLEEPER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from paceline.files import Lock
lock = Lock(Path(sys.argv[1]))
assert lock.acquire(shared=True)
print("ready", flush=True)
time.sleep(float(sys.argv[3]))
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that holds the workers lock; it looks like a worker of ours if asked to."""
    started = []

    def begin(*, looks_like_worker: bool = True, seconds: float = 60) -> subprocess.Popen[str]:
        source = str(Path(__file__).parents[2])
        lock = str(RunLayout(tmp_path).workers_lock)
        name = "paceline.worker" if looks_like_worker else "something.else"
        command = [sys.executable, "-c", SLEEPER, lock, source, str(seconds), name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def beat(root: Path, pid: int, *, at: float | None = None, attempt: int = 1, host: str | None = None) -> None:
    lines = LineWriter(RunLayout(root).heartbeat(0))
    record = {"time": time.time() if at is None else at, "rank": 0, "pid": pid, "attempt": attempt}
    lines.write_record(record | {"host": host or socket.gethostname()})
    lines.close()


def run_file() -> RunFile:
    return RunFile("id", "toy", "", "0", 0, {}, attempts=[Attempt(1, 1, 1, 0, "", [])])


def test_nothing_to_do(tmp_path: Path) -> None:
    assert end_orphans(RunLayout(tmp_path), run_file(), wait_s=0) == []


def test_an_orphan_that_ends_by_itself_is_waited_for(tmp_path: Path, start: Start) -> None:
    start(seconds=0.5)
    assert end_orphans(RunLayout(tmp_path), run_file(), wait_s=20) == []


def test_an_orphan_is_ended_by_pid(tmp_path: Path, start: Start) -> None:
    orphan = start()
    beat(tmp_path, orphan.pid)
    (said,) = end_orphans(RunLayout(tmp_path), run_file(), wait_s=0.1)
    assert str(orphan.pid) in said
    assert orphan.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.parametrize("difference", ["command line", "started later", "other host", "other attempt"])
def test_a_process_that_may_not_be_ours_is_never_signalled(tmp_path: Path, start: Start, difference: str) -> None:
    stranger = start(looks_like_worker=difference != "command line")
    beat(
        tmp_path,
        stranger.pid,
        at=psutil.Process(stranger.pid).create_time() - 5 if difference == "started later" else None,
        host="elsewhere" if difference == "other host" else None,
        attempt=7 if difference == "other attempt" else 1,
    )
    assert find_orphans(RunLayout(tmp_path), 1) == []
    os.kill(stranger.pid, 0)


def test_orphans_that_cannot_be_found_are_an_error(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = start(looks_like_worker=False)
    beat(tmp_path, stranger.pid)
    monkeypatch.setattr("paceline.launch.orphans._GONE_S", 0.1)
    with pytest.raises(OccupiedError, match="still alive"):
        end_orphans(RunLayout(tmp_path), run_file(), wait_s=0.1)
    assert stranger.poll() is None
