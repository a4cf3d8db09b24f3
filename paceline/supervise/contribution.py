"""What a supervisor adds to the incidents that supervisors of other hosts opened: the stacks of its own ranks.

    contribution = Contribution(layout, attempt=2, station)
    contribution.look(watch.processes)      # about once a second

An incident of a run that stands still has the stacks of all ranks, and nobody can take those of another host. The run directory is shared:
whoever sees a new incident there, with the stacks of those who wrote it, puts its own beside them, each rank in a file of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from paceline.files import identify_file, read_json
from paceline.supervise.rank_process import HeldProcess
from paceline.supervise.stacks import take_stacks
from paceline.supervise.station import Station
from paceline.telemetry.layout import RunLayout


class Contribution:
    """Of one host to one attempt."""

    def __init__(self, layout: RunLayout, attempt: int, station: Station) -> None:
        self._layout = layout
        self._attempt = attempt
        self._station = station
        self._read: dict[str, tuple[int, ...] | None] = {}
        """incident -> which report of it was read last"""
        self._added: dict[str, int] = {}
        """incident -> how often it had come when stacks were added"""

    def look(self, processes: Mapping[int, HeldProcess]) -> None:
        for path in sorted(self._layout.incidents.glob("*/report.json")):
            name, version = path.parent.name, identify_file(path)
            if self._read.get(name) == version:
                continue
            self._read[name] = version
            times = self._read_times(path)
            if times is not None and self._added.get(name) != times:
                self._added[name] = times
                take_stacks(self._layout, processes, world_size=0).write(path.parent / "stacks")

    def _read_times(self, path: Path) -> int | None:
        """None: it is our own, of another attempt, over, or not for stacks (yet)."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            record = read_json(path)
            is_theirs = record["attempt"] == self._attempt and record["host_index"] != self._station.host_index
            if is_theirs and record["ended"] is None and record["stacks"]["taken_s"] is not None:
                return int(record["times"])
        return None
