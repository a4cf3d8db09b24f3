"""What can be seen of a run at one moment, as plain data: each rank's pulse beside what the operating system says of its process.

Whoever looks (the supervisor several times a second, `diagnose` once, a test from a list) fills it in; whoever judges gets nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.telemetry.pulse import Pulse


@dataclass(frozen=True)
class ProcessSight:
    """A rank's process on this host."""

    pid: int
    state: str
    """running, sleeping, disk (uninterruptible), stopped, zombie, gone; other: some state of the kernel's; unknown: not allowed to look"""
    cpu_s: float = 0.0
    """CPU time so far, all threads"""
    memory_gib: float | None = None
    """its own, without what it has mapped of files"""
    exit_code: int | None = None
    """of a process that has gone, where anybody knows; negative: a signal"""
    group: str = ""
    """its control group"""
    held_back_s: float | None = None
    """for how long the kernel has held that back for its CPU quota; None: it has none, or nobody tells"""


@dataclass(frozen=True)
class RankSight:
    """One rank."""

    rank: int
    host: str
    pulse: Pulse | None
    process: ProcessSight | None
    """None: it is on another host"""


@dataclass(frozen=True)
class Sight:
    """All ranks of one attempt at one moment."""

    time: float
    """unix time, by the clock of the host that looked"""
    monotonic: float
    """the same moment by a clock that never jumps"""
    attempt: int
    world_size: int
    ranks: tuple[RankSight, ...]
