"""Whose turn it is to supervise a run: the lock says it, and a launcher that brings a supervisor of its own is given the time to.

turn = Turn(layout)
turn.enter(attempt)
turn.take(run, attempt)         # True: from here on nobody else will supervise it
turn.describe(run, attempt)     -> ["attempt 1 is supervised by another process: this one shows"]
"""

from __future__ import annotations

import time

from paceline.files import Lock, is_locked
from paceline.supervise.settings import load_enabled
from paceline.supervise.station import Station, find_station
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import SDK_RECIPE, Attempt, RunFile

_LAUNCHER_S = 30.0
"""in which a launcher brings its supervisor, or replaces one that died; after that nobody will"""


class Turn:
    """One watcher's."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._lock = Lock(layout.supervisor_lock)
        self._station = Station()
        self._missing_since: float | None = None
        """since when nobody has been seen to supervise it"""
        self._refusal = ""
        """why we cannot"""

    @property
    def is_taken(self) -> bool | None:
        """Whether somebody supervises the run on this host at this moment; None: it cannot be seen, as the lock must not be touched."""
        return is_locked(self._lock.path) if self._lock.path.exists() else False

    def enter(self, attempt: Attempt) -> None:
        """Of each host's ranks there is one supervisor; who stands on none of its hosts sees that of the first one, and is none."""
        self._station, self._refusal = find_station(attempt), ""
        if self._lock.path != self._layout.supervisor_lock_of(self._station.host_index):
            self._lock.release()
            self._lock = Lock(self._layout.supervisor_lock_of(self._station.host_index))

    def take(self, run: RunFile, attempt: Attempt) -> bool:
        if not self._station.has_ranks:
            self._refusal = "none of its ranks is on this host"
            return False
        if self._has_supervisor(run, attempt) and not self._is_overdue():
            return False
        try:
            return self._lock.acquire()
        except OSError as error:  # a directory that one may only read
            self._refusal = error.strerror or str(error)
            return False

    def give_back(self, *, is_new_attempt: bool = False) -> None:
        """Of the next attempt a launcher may bring its own, and has the time to."""
        self._lock.release()
        if is_new_attempt:
            self._missing_since = None

    def describe(self, run: RunFile, attempt: Attempt, *, is_glance: bool) -> list[str]:
        """Who supervises the attempt, as we do not."""
        which, taken = f"attempt {attempt.attempt}", self.is_taken
        if taken:
            return [f"{which} is supervised by another process: this one shows"] if not is_glance else []
        if self._refusal:
            others = "nobody does" if taken is False else "whether another process does cannot be seen from here"
            return [f"cannot supervise {which} ({self._refusal}), and {others}: this one shows"]
        if taken is None:
            return [f"whether anybody supervises {which} cannot be seen from here"]
        if self._has_supervisor(run, attempt):
            then = "" if is_glance else f"; this one shows, and takes over in {_LAUNCHER_S:.0f} s"
            return [f"nobody supervises {which} at this moment, its launcher brings a supervisor{then}"]
        return [f"nobody supervises {which}"]

    def _has_supervisor(self, run: RunFile, attempt: Attempt) -> bool:
        """`paceline train` has a supervisor of its own, or will; a launcher that is not ours, and the SDK, do not."""
        is_ours = run.recipe != SDK_RECIPE and not any("paceline.worker" in word for word in attempt.argv)
        return is_ours and load_enabled(self._layout)

    def _is_overdue(self) -> bool:
        """Whether a launcher's supervisor has been missing for so long that none will come."""
        now = time.monotonic()
        if self.is_taken is not False:
            self._missing_since = None
            return False
        self._missing_since = self._missing_since if self._missing_since is not None else now
        return now - self._missing_since >= _LAUNCHER_S
