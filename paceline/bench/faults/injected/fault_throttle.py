"""Takes CPU time away from a process, from outside: started by the rank that is to suffer, and gone when that has gone.

    python fault_throttle.py PID SHARE CORES [signals]      SHARE: 0.25 makes it take a quarter longer; CORES: that it keeps busy now

By a CPU quota where control groups allow one, else by stopping it in turns. Prints which, and the limit, once it has begun.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))


def begin_quota(pid: int, limit: float, period_us: int = 10_000) -> Path | None:
    """The group in which the process may keep so many cores busy, all its threads together; None: nowhere can one be made."""
    quota_us = max(1000, round(limit * period_us))  # the least that there is
    for root in ROOTS:
        group = root / f"fault-{pid}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_period_us").write_text(str(period_us))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {period_us}")  # not there where the controller is not on
            (group / "cgroup.procs").write_text(str(pid))
            return group
        except OSError:
            group.rmdir()
    return None


def hold_quota(pid: int, group: Path) -> None:
    """Until the process has gone."""
    while os.getppid() == pid:
        time.sleep(0.1)
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:  # its last process has not been buried yet
            time.sleep(0.1)


def stop_in_turns(pid: int, limit: float, period_s: float = 0.02) -> None:
    """Until the process has gone, which is our parent, and nobody else can have its pid before that."""
    while os.getppid() == pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep((1 - limit) * period_s)
        if os.getppid() != pid:  # killed meanwhile
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(limit * period_s)


def main(pid: int, share: float, cores: float, *, by_signals: bool) -> None:
    # Against what the rank used: where ranks share cores, that is less than one, and a limit above it would take nothing away.
    limit = cores / (1 + share)
    group = None if by_signals else begin_quota(pid, limit)
    print("signals" if group is None else "quota", limit, flush=True)
    if group is None:
        stop_in_turns(pid, min(limit, 0.95))
    else:
        hold_quota(pid, group)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), by_signals="signals" in sys.argv[4:])
