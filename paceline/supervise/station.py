"""Where somebody who watches an attempt stands: on which of its hosts, and which ranks are processes there.

    station_of(attempt, host_index=1)     -> Station(host_index=1, ranks=(2, 3)): the supervisor of that host
    find_station(attempt)                 -> the same for somebody who was not told, by the name of this machine

Ranks of other hosts are known by the pulses that come from there, if any do; their pids mean nothing here.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.telemetry.run_file import Attempt


@dataclass(frozen=True)
class Station:
    """One place to watch from."""

    host_index: int = 0
    """of the supervisor that belongs here; 0: the host that owns the run, to which all pulses come"""
    ranks: tuple[int, ...] | None = None
    """those of this host; None: all"""

    @property
    def is_leader(self) -> bool:
        """Whether what concerns the run as a whole is told here: once, not on every host."""
        return self.host_index == 0

    @property
    def has_ranks(self) -> bool:
        return self.ranks is None or bool(self.ranks)

    def is_here(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks


def station_of(attempt: Attempt, host_index: int = 0, ranks: Sequence[int] | None = None) -> Station:
    """`ranks`: as somebody says who knows; else those that run.json has of this host."""
    if ranks is None:
        known = [each.ranks for each in attempt.hosts if each.index == host_index]
        ranks = known[0] if known else None
    return _build(attempt, host_index, ranks)


def find_station(attempt: Attempt) -> Station:
    """On a machine that is none of the attempt's hosts no rank is here."""
    here = [each for each in attempt.hosts if each.host == socket.gethostname()]
    if not attempt.hosts or here == attempt.hosts:
        return Station()
    # Two launchers of one run on one machine: all their ranks can be looked at.
    ranks = [rank for each in here for rank in each.ranks]
    return _build(attempt, min((each.index for each in here), default=0), ranks)


def _build(attempt: Attempt, host_index: int, ranks: Sequence[int] | None) -> Station:
    if ranks is None or set(ranks) == set(range(attempt.world_size)):
        return Station(host_index)
    return Station(host_index, tuple(sorted(ranks)))
