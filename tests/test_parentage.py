"""A process that asked for it ends with its parent: when the parent is killed, and when it was dead before the question."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal exists on Linux only"),
]

ROOT = Path(__file__).parent.parent
CHILD = """
import os, sys, time
from paceline.parentage import die_with_parent
parent = int(sys.argv[1])
{before}
die_with_parent(parent)
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
print("child", child.pid, flush=True)
time.sleep({alive_s})
"""


def is_alive(pid: int) -> bool:
    """A zombie does not count: it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    gone = not is_alive(pid)
    if not gone:
        os.kill(pid, signal.SIGKILL)
    return gone


def start(child: str, alive_s: float) -> tuple[subprocess.Popen[str], int]:
    """A parent with a child; the child's pid."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(alive_s=alive_s), child], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline().split()[1])


def test_the_child_ends_when_its_parent_is_killed() -> None:
    parent, child = start(CHILD.format(before=""), alive_s=60)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) == child  # it has asked by now
    assert is_alive(child)
    parent.kill()
    parent.wait(timeout=30)
    assert wait_until_gone(child)
    parent.stdout.close()


def test_a_parent_that_is_already_dead_counts() -> None:
    wait = "while os.getppid() == parent: time.sleep(0.01)"
    parent, child = start(CHILD.format(before=wait), alive_s=0)
    parent.wait(timeout=30)
    assert wait_until_gone(child)
    assert parent.stdout is not None
    assert parent.stdout.read() == ""  # it ended inside the call
    parent.stdout.close()


def test_without_it_the_child_would_stay() -> None:
    parent, child = start("import os, time; print(os.getpid(), flush=True); time.sleep(60)", alive_s=60)
    assert parent.stdout is not None
    parent.stdout.readline()
    parent.kill()
    parent.wait(timeout=30)
    time.sleep(0.2)
    try:
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_rank_whose_parent_is_no_agent_is_an_orphan_and_ends(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text("from paceline.parentage import die_with_agent\ndie_with_agent()\nprint('alive')\n")
    script = tmp_path / "run.sh"
    script.write_text('"$INTERPRETER" "$CHILD"\nexit $?\n')
    environment = os.environ | {"INTERPRETER": sys.executable, "CHILD": str(child), "PYTHONPATH": str(ROOT)}
    orphan = subprocess.run(
        ["sh", str(script)], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert (orphan.returncode, orphan.stdout) == (1, "")
    rank = subprocess.run(
        [sys.executable, str(child)], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert (rank.returncode, rank.stdout) == (0, "alive\n"), rank.stderr
