"""For how long the kernel has held a process back because its control group had used up its CPU quota (a container's CPU limit is one).

held = read_held_back(4711)      -> HeldBack(group="/kubepods/pod1", seconds=12.4), or None: no quota, or nobody tells
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MOUNTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup"))
"""of the first version's controller, under both its names, and of the second version"""
_UNITS = {"throttled_time": 1e-9, "throttled_usec": 1e-6}


@dataclass(frozen=True)
class HeldBack:
    """A group, and the time its processes wanted to run and were not allowed to, added up over cores."""

    group: str
    seconds: float


def read_held_back(pid: int) -> HeldBack | None:
    """Read anew each time: a process can be moved."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    group = find_group(text)
    return None if group is None else _read_group(group)


def find_group(text: str) -> str | None:
    """The group that has the CPU controller, of what /proc/PID/cgroup says; None: the root, which has no quota."""
    groups = {controllers: group for _, controllers, group in (line.split(":", 2) for line in text.splitlines())}
    for controllers, group in groups.items():
        if "cpu" in controllers.split(","):
            return group if group != "/" else None
    unified = groups.get("", "/")
    return unified if unified != "/" else None


def _read_group(group: str) -> HeldBack | None:
    for mount in _MOUNTS:
        try:
            words = (mount / group.lstrip("/") / "cpu.stat").read_text(encoding="ascii", errors="replace").split()
        except OSError:
            continue
        told = dict(zip(words[::2], words[1::2], strict=False))
        for name, unit in _UNITS.items():
            if told.get(name, "").isdigit():
                return HeldBack(group, int(told[name]) * unit)
    return None
