"""Memory that only grows: by its slope, for each rank, while the run is watched."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.sight import Sight

_PARTS = 4
LEAST_GIB = 0.25
LEAST_SHARE = 0.05
"""of what it was: growth that is less is none"""
_LEAST_S = 15.0
_EVERY_S = 1.0
_JUDGED_S = 2.0
_KEPT = 180
_FIRST_STEP = 20
"""before that, everybody's memory grows"""


@dataclass(frozen=True)
class Growth:
    """Memory that rose in every part of a time."""

    from_gib: float
    to_gib: float
    over: float
    """seconds or steps, as the caller counts"""

    @property
    def gib(self) -> float:
        return self.to_gib - self.from_gib


def fit_growth(places: Sequence[float], values_gib: Sequence[float]) -> Growth | None:
    """Steady growth, if it is that: each quarter of the time is above the one before it, and none of them makes up for the others.

    A warm-up that levels off, a sawtooth and a single jump are not.
    """
    num = len(values_gib)
    if num < 2 * _PARTS or max(values_gib) - min(values_gib) < LEAST_GIB:
        return None
    borders = [part * num // _PARTS for part in range(_PARTS + 1)]
    parts = list(pairwise(borders))
    levels = [median(values_gib[begin:end]) for begin, end in parts]
    rises = [after - before for before, after in pairwise(levels)]
    total = levels[-1] - levels[0]
    if total < max(LEAST_GIB, LEAST_SHARE * levels[0]) or min(rises) < 0.5 * total / len(rises):
        return None
    centres = [median(places[begin:end]) for begin, end in parts]
    return Growth(levels[0], levels[-1], centres[-1] - centres[0])


class MemoryWatch:
    """Follows the memory of every rank on this host."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._seen: dict[int, deque[tuple[float, float]]] = {}
        self._looked = -math.inf
        self._judged = -math.inf
        self._found: list[Finding] = []

    def see(self, sight: Sight) -> list[Finding]:
        if sight.attempt != self._attempt:
            self._attempt, self._seen, self._found = sight.attempt, {}, []
        if sight.monotonic - self._looked >= _EVERY_S:
            self._looked = sight.monotonic
            self._look(sight)
        if sight.monotonic - self._judged >= _JUDGED_S:
            self._judged = sight.monotonic
            self._found = self._judge(sight)
        return self._found

    def _look(self, sight: Sight) -> None:
        for seen in sight.ranks:
            memory = seen.process.memory_gib if seen.process is not None else None
            if memory is not None and seen.pulse is not None and seen.pulse.step >= _FIRST_STEP:
                self._seen.setdefault(seen.rank, deque(maxlen=_KEPT)).append((sight.monotonic, memory))

    def _judge(self, sight: Sight) -> list[Finding]:
        found = []
        for seen in sight.ranks:
            history = self._seen.get(seen.rank)
            if history is None or seen.pulse is None or history[-1][0] - history[0][0] < _LEAST_S:
                continue
            times, values = zip(*history, strict=True)
            growth = fit_growth(times, values)
            if growth is not None:
                found.append(report_growth(growth, seen.rank, seen.host, seen.pulse.step, sight.time - growth.over))
        return found


def report_growth(growth: Growth, rank: int | None, host: str | None, step: int, since: float | None) -> Finding:
    """`growth` counted in seconds."""
    per_hour = growth.gib / growth.over * 3600
    whose = f"the memory of rank {rank}" if rank is not None else "memory"
    said = f"{growth.from_gib:.2f} → {growth.to_gib:.2f} GiB in {growth.over:.0f} s"
    return Finding(
        "memory_growth",
        f"{whose} grows steadily: {said}, {per_hour:,.1f} GiB an hour",
        "look for what is kept from step to step: losses with their graph (use .item()), lists, caches; data.num_workers=0 tells whether it is the loader",
        cause="host",
        rank=rank,
        host=host,
        step=step,
        since=since,
        witnesses=(Witness("process" if rank is not None else "metrics", True, said),),
        numbers={"gib_per_hour": per_hour, "gib": growth.to_gib},
    )
