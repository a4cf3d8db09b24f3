from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from paceline.errors import DataError
from paceline.launch.command import agent_command
from paceline.launch.process import Agent, RankExit, parse_exits
from paceline.telemetry.failure import format_failure

REPORT = """
============================================================
toy FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:01
  host      : a
  rank      : 0 (local_rank: 0)
  exitcode  : 4 (pid: 100)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : a
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
============================================================"""

# A child of the child in a session of its own whose parent then ends: what is left of a worker that died.
FAMILY = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "middle"], start_new_session=True)
elif sys.argv[1] == "middle":
    subprocess.Popen([sys.executable, __file__, "lost"], start_new_session=True)
    sys.exit()
print("pid", os.getpid(), flush=True)
time.sleep(120)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(script: str, folder: Path, log: Path | None = None) -> Agent:
    path = folder / "script.py"
    path.write_text(script)
    environment = os.environ | {"TORCHELASTIC_RUN_ID": f"test-{folder}"}
    return Agent([sys.executable, str(path)], environment, log or folder / "launcher.log", f"test-{folder}")


def test_the_report_of_torchrun() -> None:
    assert parse_exits(REPORT.splitlines()) == [RankExit(rank=1, exit_code=-9, pid=4711), RankExit(0, 4, 100)]
    assert parse_exits(["nothing", "of the kind"]) == []


def test_output_is_kept_and_failures_are_collected(tmp_path: Path) -> None:
    record = DataError("no file", "a.txt").to_record() | {"rank": 1, "secondary": False}
    script = f"import sys\nprint('hello')\nprint({format_failure(record)!r}, file=sys.stderr)\nsys.exit(3)"
    agent = start(script, tmp_path)
    assert agent.wait(30) == 3
    assert agent.kill_all() == []
    assert agent.failures == [record]
    assert list(agent.tail) == ["hello"]
    assert (tmp_path / "launcher.log").read_text() == "hello\n"


def test_a_log_that_cannot_be_written_does_not_block_the_workers(tmp_path: Path) -> None:
    agent = start("print('x' * 100_000)", tmp_path, log=Path("/dev/full"))
    assert agent.wait(30) == 0
    agent.kill_all()
    assert len(agent.tail[0]) == 100_000


def test_killing_leaves_nothing(tmp_path: Path) -> None:
    agent = start(FAMILY, tmp_path)
    wait_for(lambda: len(agent.tail) == 2)
    pids = {int(line.split()[1]) for line in agent.tail}
    assert agent.pid in pids
    assert all(is_alive(pid) for pid in pids)
    assert agent.kill_all() == []
    assert not any(is_alive(pid) for pid in pids)


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        agent = start("pass", tmp_path)
        agent.wait(30)
        agent.kill_all()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait(10)


@pytest.mark.timeout(60)
def test_the_agent_ends_with_a_launcher_that_was_killed(tmp_path: Path) -> None:
    launcher = (
        "import sys, time; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from test_process import start\n"
        "agent = start('import time; time.sleep(120)', Path(sys.argv[1]))\n"
        "print(agent.pid, flush=True); time.sleep(120)"
    )
    command = [sys.executable, "-c", launcher, str(tmp_path), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    wait_for(lambda: not is_alive(pid))


@pytest.mark.timeout(100)
def test_a_killed_rank_is_found_in_the_real_report(tmp_path: Path) -> None:
    (tmp_path / "victim.py").write_text(
        "import os, signal, time\n"
        "os.write(1, f\"rank {os.environ['RANK']} {os.getpid()}\\n\".encode())  # one write: two ranks share the pipe\n"
        "time.sleep(0.5)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(60)\n"
    )
    command = agent_command(2, [], rendezvous_id="test-victim", module="victim")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    agent = Agent(command, environment, tmp_path / "launcher.log", "test-victim")
    try:
        assert agent.wait(90) == 1
    finally:
        assert agent.kill_all() == []
    pids = {
        words[1]: int(words[2]) for words in map(str.split, agent.tail) if words[:1] == ["rank"] and len(words) == 3
    }
    assert agent.exits()[0] == RankExit(rank=1, exit_code=-9, pid=pids["1"])
    assert agent.exits()[1:] == [RankExit(rank=0, exit_code=-signal.SIGTERM, pid=pids["0"])]
    assert not any(is_alive(pid) for pid in pids.values())
