"""What the kernel tells of a process's CPU quota."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.supervise.cpu_group import CpuGroups, HeldBack, Mount, find_group, find_mounts
from paceline.supervise.rank_process import HeldProcess

MOUNTS = b"""\
30 23 0:27 / / rw,relatime - overlay overlay rw
32 31 0:29 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
COUNTED = "usage_usec 9\nnr_periods 7\nnr_throttled 5\nthrottled_usec 2500000\n"


def test_the_group_with_the_cpu_controller_in_both_versions() -> None:
    assert find_group(b"12:memory:/m\n3:cpu,cpuacct:/docker/ab\n0::/\n") == (False, "/docker/ab")
    assert find_group(b"2:cpuset:/x\n1:cpu:/\n0::/y\n") == (False, "/")
    assert find_group(b"0::/user.slice/run:7\n") == (True, "/user.slice/run:7")
    assert find_group(b"0::/\n") == (True, "/")
    assert find_group(b"") is None


def test_where_groups_are_mounted() -> None:
    assert find_mounts(MOUNTS) == [
        Mount(False, "/docker/ab", "/sys/fs/cgroup/cpu,cpuacct"),
        Mount(True, "/", "/sys/fs/cgroup/unified"),
    ]
    assert find_mounts(b"") == []


def test_odd_lines_are_passed_over() -> None:
    odd = "30 1 0:9 / /a rw - tmpfs  rw\n31 1 0:9 / /b\u2028c rw - tmpfs x rw\n\n32 rubbish\n".encode()
    good = b"33 1 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    assert find_mounts(odd + good) == [Mount(True, "/", "/sys/fs/cgroup")]
    assert find_group(b"rubbish\n0::/x\n") == (True, "/x")


def test_a_container_with_a_namespace_of_its_own_has_its_quota_at_the_root(tmp_path: Path) -> None:
    groups = CpuGroups([Mount(True, "/", str(tmp_path))])
    (tmp_path / "cpu.stat").write_text("usage_usec 9\nuser_usec 5\nsystem_usec 4\n")  # as the real root
    assert groups.read_group(True, "/") is None
    (tmp_path / "cpu.stat").write_text(COUNTED)
    assert groups.read_group(True, "/") == HeldBack("/", 2.5)


def test_a_group_is_found_below_the_one_that_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "cpu.stat").write_text("nr_periods 3\nnr_throttled 1\nthrottled_time 500000000\n")
    (tmp_path / "pod" / "cpu.stat").write_text("nr_periods 3\nnr_throttled 1\nthrottled_time 1000000000\n")
    groups = CpuGroups([Mount(False, "/docker/ab", str(tmp_path))])
    assert groups.read_group(False, "/docker/ab") == HeldBack("/docker/ab", 0.5)
    assert groups.read_group(False, "/docker/ab/pod") == HeldBack("/docker/ab/pod", 1.0)
    assert groups.read_group(False, "/docker/abc") is None
    assert groups.read_group(False, "/") is None
    assert groups.read_group(True, "/docker/ab") is None  # of the other version


def test_a_group_outside_our_namespace_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "cpu.stat").write_text(COUNTED)
    assert CpuGroups([Mount(True, "/", str(tmp_path / "own"))]).read_group(True, "/..") is None


def test_a_group_is_read_once_for_all_its_ranks_and_anew_at_the_next_look(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    groups = CpuGroups([Mount(True, "/", str(tmp_path))])
    (tmp_path / "pod" / "cpu.stat").write_text(COUNTED)
    assert groups.read(b"0::/pod\n") == HeldBack("/pod", 2.5)
    (tmp_path / "pod" / "cpu.stat").write_text(COUNTED.replace("25", "35"))
    assert groups.read(b"0::/pod\n") == HeldBack("/pod", 2.5)
    groups.forget()
    assert groups.read(b"0::/pod\n") == HeldBack("/pod", 3.5)


def test_a_process_that_has_gone_tells_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = HeldProcess(child.pid)
    assert held.read_groups() == Path(f"/proc/{child.pid}/cgroup").read_bytes()
    child.communicate(b"\n", timeout=60)
    assert held.read_groups() == b""
    held.close()
    assert CpuGroups().read(b"") is None


def test_a_real_quota_is_counted() -> None:
    group = Path("/sys/fs/cgroup/cpu") / f"paceline-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    process = HeldProcess(child.pid)
    try:
        (group / "cpu.cfs_period_us").write_text("10000")
        (group / "cpu.cfs_quota_us").write_text("1000")
        (group / "cgroup.procs").write_text(str(child.pid))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            held = CpuGroups().read(process.read_groups())
            assert held is not None
            assert held.group == f"/{group.name}"
            if held.seconds > 0.05:
                return
            time.sleep(0.05)
        pytest.fail("nothing was counted")
    finally:
        process.close()
        child.kill()
        child.wait(timeout=60)
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)
