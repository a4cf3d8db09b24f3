"""Takes CPU time away from a process, from outside: started by the rank that is to suffer, and gone when that has gone.

python fault_throttle.py quota|signals PID LIMIT      LIMIT: cores that it may keep busy, or the share of the time that it may run
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def find_cpu_group() -> Path | None:
    """Where a control group with a CPU quota can be made; None: nowhere."""
    for root in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        group = root / f"fault-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        has_quota = (group / "cpu.cfs_quota_us").exists() or (group / "cpu.max").exists()
        group.rmdir()
        if has_quota:
            return root
    return None


def limit_by_quota(pid: int, limit: float, period_us: int = 10_000) -> None:
    """Until the process has gone; its threads have so much of a core together."""
    root = find_cpu_group()
    assert root is not None
    group = root / f"fault-{pid}"
    group.mkdir(exist_ok=True)
    quota_us = max(1000, round(limit * period_us))  # the least that there is
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    (group / "cgroup.procs").write_text(str(pid))
    while os.getppid() == pid:
        time.sleep(0.1)
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:  # its last process has not been buried yet
            time.sleep(0.1)


def limit_by_signals(pid: int, limit: float, period_s: float = 0.02) -> None:
    """Until the process has gone, which is our parent, and nobody else can have its pid before that."""
    while os.getppid() == pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep((1 - limit) * period_s)
        os.kill(pid, signal.SIGCONT)
        time.sleep(limit * period_s)


if __name__ == "__main__":
    {"quota": limit_by_quota, "signals": limit_by_signals}[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))
