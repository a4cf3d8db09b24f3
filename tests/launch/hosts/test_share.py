"""A member's share of an attempt with real processes: a stand-in for the agent, and what it started."""

from __future__ import annotations

import base64
import os
import sys
import threading
from pathlib import Path

import psutil
import pytest

from paceline.errors import DataError
from paceline.launch.command import LAUNCH_MARK
from paceline.launch.hosts.message import Begin
from paceline.launch.hosts.share import Share
from paceline.telemetry.failure import format_failure
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter, raw_pulse

AGENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
print("child", child.pid, flush=True)
print(sys.argv[2], flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def share_of(tmp_path: Path, run_s: float, line: str = "") -> Share:
    layout = RunLayout(tmp_path)
    layout.launcher_log.parent.mkdir(exist_ok=True)
    mark = f"share-{os.getpid()}-{tmp_path.name}"
    begin = Begin(2, "abc", 1, 2, 4, 6, "127.0.0.1", 4711, mark, 2)
    command = [sys.executable, "-c", AGENT, str(run_s), line]
    environment = os.environ | {LAUNCH_MARK: mark}
    return Share(layout, begin, 1, lambda pulses: command, environment)


def child_of(tmp_path: Path) -> int:
    log = RunLayout(tmp_path).member_log(1)
    while not (log.exists() and "child" in log.read_text()):
        threading.Event().wait(0.02)
    return int(log.read_text().split()[1])


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.timeout(60)
def test_it_ends_with_everything_that_it_started_when_it_is_told_to(tmp_path: Path) -> None:
    share = share_of(tmp_path, 120)
    child = child_of(tmp_path)
    assert share.poll() is None
    report = share.end(is_hasty=True)
    assert (report.attempt, report.agent_exit, report.left) == (2, -9, "")
    assert is_gone(child)
    assert share.end() is report, "once"


@pytest.mark.timeout(60)
def test_its_report_has_what_the_ranks_said(tmp_path: Path) -> None:
    line = format_failure(DataError("line 3 is not a number").to_record() | {"rank": 5})
    share = share_of(tmp_path, 0.1, line)
    while share.poll() is None:
        threading.Event().wait(0.02)
    child = child_of(tmp_path)
    report = share.end()
    assert report.agent_exit == 3
    assert [record["rank"] for record in report.failures] == [5]
    assert report.tail[0].startswith("child")
    assert is_gone(child)


@pytest.mark.timeout(60)
def test_pulses_of_its_ranks_are_told_twice_a_second_and_go_with_it(tmp_path: Path) -> None:
    share = share_of(tmp_path, 120)
    PulseWriter(share._pulses, 4, 2).beat(7, "forward")
    pulses = share.read_pulses()
    assert {rank: base64.b64decode(data) for rank, data in pulses.items()} == {"4": raw_pulse(share._pulses, 4)}
    assert share.read_pulses() == {}, "not again so soon"
    share.end()
    assert not share._pulses.exists()


@pytest.mark.timeout(60)
def test_the_machine_of_the_member_is_recorded_beside_the_leaders(tmp_path: Path) -> None:
    share = share_of(tmp_path, 120)
    while not RunLayout(tmp_path).member_environment(1).exists():
        threading.Event().wait(0.02)
    share.end()
    assert not RunLayout(tmp_path).environment.exists()
