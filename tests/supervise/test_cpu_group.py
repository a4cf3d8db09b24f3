"""What the kernel tells of a process's CPU quota."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.supervise.cpu_group import find_group, read_held_back


def test_the_group_with_the_cpu_controller_in_both_versions() -> None:
    assert find_group("12:memory:/m\n3:cpu,cpuacct:/docker/ab\n0::/\n") == "/docker/ab"
    assert find_group("2:cpuset:/x\n1:cpu:/\n0::/y\n") is None
    assert find_group("0::/user.slice/run:7\n") == "/user.slice/run:7"
    assert find_group("0::/\n") is None
    assert find_group("") is None


def test_a_process_that_has_gone_tells_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=60)
    assert read_held_back(child.pid) is None


def test_a_real_quota_is_counted() -> None:
    group = Path("/sys/fs/cgroup/cpu") / f"paceline-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (group / "cpu.cfs_period_us").write_text("10000")
        (group / "cpu.cfs_quota_us").write_text("1000")
        (group / "cgroup.procs").write_text(str(child.pid))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            held = read_held_back(child.pid)
            assert held is not None
            assert held.group == f"/{group.name}"
            if held.seconds > 0.05:
                return
            time.sleep(0.05)
        pytest.fail("nothing was counted")
    finally:
        child.kill()
        child.wait(timeout=60)
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)
