"""For how long the kernel has held a process back because its control group had used up its CPU quota (a container's CPU limit is one).

    groups = CpuGroups()
    groups.read(b"0::/kubepods/pod1")      -> HeldBack(group="/kubepods/pod1", seconds=12.4), or None: no quota can be, or nobody tells

A group's name is as seen from here: in a container with a control group namespace of its own, "/" is the container's group, which has a
quota if the container has one. The real root has none: its counters say nothing of the kind, or 0 (first version).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

_UNITS = {b"throttled_time": 1e-9, b"throttled_usec": 1e-6}
"""of the first version, and of the second"""


@dataclass(frozen=True)
class HeldBack:
    """A group, and the time its processes wanted to run and were not allowed to, added up over cores."""

    group: str
    seconds: float


class Mount(NamedTuple):
    """Where groups are to be seen."""

    is_unified: bool
    """the second version's"""
    root: str
    """the group that lies at `path`: in a container without a namespace of its own it is not "/" """
    path: str


class CpuGroups:
    """All that can be seen from here; what one group tells is read once for all that are asked about in a row."""

    def __init__(self, mounts: list[Mount] | None = None) -> None:
        self._mounts = find_mounts(_read("/proc/self/mountinfo") or b"") if mounts is None else mounts
        self._told: dict[bytes, HeldBack | None] = {}

    def forget(self) -> None:
        """Time has passed: whoever is asked about next is read anew."""
        self._told.clear()

    def read(self, text: bytes) -> HeldBack | None:
        """Of a process, by what its /proc/PID/cgroup says at this moment: it can be moved."""
        if text not in self._told:
            group = find_group(text)
            self._told[text] = self.read_group(*group) if group is not None else None
        return self._told[text]

    def read_group(self, is_unified: bool, group: str) -> HeldBack | None:
        for mount in self._mounts:
            below = _below(group, mount.root)
            if mount.is_unified != is_unified or below is None:
                continue
            words = (_read(f"{mount.path}{below}/cpu.stat") or b"").split()
            for name, seconds in zip(words[::2], words[1::2], strict=False):
                if name in _UNITS and seconds.isdigit():
                    return HeldBack(group, int(seconds) * _UNITS[name])
        return None


def find_group(text: bytes) -> tuple[bool, str] | None:
    """Whether it is of the second version, and the group that has the CPU controller, of what /proc/PID/cgroup says."""
    unified = None
    for line in text.decode("utf-8", "replace").split("\n"):
        if line.count(":") < 2:
            continue
        _, controllers, group = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return False, group
        if not controllers:
            unified = True, group
    return unified


def find_mounts(text: bytes) -> list[Mount]:
    """Those with the CPU controller, of what /proc/self/mountinfo says."""
    found = []
    for line in text.decode("utf-8", "replace").split("\n"):
        place, _, kind = line.partition(" - ")
        # By single blanks: a mount may have nothing for its source, and paths any character but a blank.
        before, after = place.split(" "), kind.split(" ")
        if len(before) < 5 or len(after) < 3:
            continue
        if after[0] == "cgroup2" or (after[0] == "cgroup" and "cpu" in after[2].split(",")):
            found.append(Mount(after[0] == "cgroup2", before[3], before[4]))
    return found


def _below(group: str, root: str) -> str | None:
    """Its path from there; None: it cannot be seen from there."""
    if "/.." in group:  # of somebody outside our namespace
        return None
    if root == "/":
        return group.rstrip("/")
    return group[len(root) :] if group == root or group.startswith(f"{root}/") else None


def _read(path: str) -> bytes | None:
    """A small file of the kernel's; None if it has gone, or nobody may read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)
