"""The CPU cores that this process may really use: its affinity, and a container's quota where that is less."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cpu_count() -> int:
    """CPU cores this process may use: its affinity, or a container's quota where that is less."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cores, math.ceil(quota))) if quota is not None else cores


def _cgroup_quota() -> float | None:
    """Cores' worth of CPU time the control group allows; None where there is no limit."""
    quotas = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(folder / "cpu.max") for folder in _upwards(_CGROUP, path)]
        elif "cpu" in controllers.split(","):
            for folder in _upwards(_CGROUP / "cpu", path):
                quotas.append(_quota_v1(folder))
    limits = [quota for quota in quotas if quota is not None]
    return min(limits) if limits else None


def _upwards(base: Path, path: str) -> list[Path]:
    """The group's own folder and those above it: any of them may hold the limit. In a container only the base may exist."""
    folder = base / path.lstrip("/")
    return [folder, *[parent for parent in folder.parents if parent.is_relative_to(base)]]


def _quota_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
