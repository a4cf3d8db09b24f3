"""What can be seen of a run at one moment, as plain data: each rank's pulse beside what the operating system says of its process.

Whoever looks (the supervisor several times a second, `diagnose` once, a test from a list) fills it in; whoever judges gets nothing else.
"""

from __future__ import annotations

import functools
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
class Hearsay:
    """How the pulse of a rank on another host came; times by the watcher's clock that never jumps."""

    moved: float | None = None
    """when it was last another one than before; None: none has come"""
    silent_s: float = 0.0
    """for how long nothing has come from there, be it the same again; 0: it comes as it should"""


@dataclass(frozen=True)
class RankSight:
    """One rank."""

    rank: int
    host: str
    pulse: Pulse | None
    process: ProcessSight | None
    """None: it is on another host, or has no pulse yet"""
    hearsay: Hearsay | None = None
    """of a rank on another host; None: it is on this one, or nobody knows where"""


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

    @functools.cached_property
    def unseen(self) -> frozenset[int]:
        """Ranks on other hosts of which it cannot be told from here where they are now."""
        far = ((seen.rank, seen.pulse, seen.hearsay) for seen in self.ranks if seen.hearsay is not None)
        return frozenset(rank for rank, pulse, hearsay in far if pulse is None or hearsay.silent_s > 0)

    def held_s(self, seen: RankSight) -> float | None:
        """For how long one of its ranks has been where it is: by the clock of its host where that is this one, else as seen from here."""
        if seen.hearsay is not None:
            return self.monotonic - seen.hearsay.moved if seen.hearsay.moved is not None else None
        return max(0.0, self.time - seen.pulse.since) if seen.pulse is not None else None
