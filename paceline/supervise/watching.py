"""The two ways to watch an attempt, behind one face: from inside, by pulses, or from outside, by what a foreign script shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import Sight
from paceline.supervise.inside import InsideWatch
from paceline.supervise.outside import OutsideWatch
from paceline.supervise.rank_process import HeldProcess
from paceline.supervise.settings import Settings
from paceline.supervise.station import Station, find_station
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import FOREIGN_RECIPE, Attempt, RunFile


class Waiting(Protocol):
    """What an eye can do beside looking."""

    def wait(self, seconds: float) -> None: ...

    def wake_on(self, descriptor: int) -> None: ...


class Watch(Protocol):
    """One attempt, looked at several times a second."""

    @property
    def eye(self) -> Waiting: ...

    @property
    def processes(self) -> Mapping[int, HeldProcess]: ...

    @property
    def told_step(self) -> int | None:
        """The last one that a script's output told; None where pulses do."""

    def look(self) -> tuple[Sight, list[Finding]]:
        """What there is to see, and what is wrong with it."""

    def kill(self) -> list[int]:
        """Ends all ranks with everything they started; the pids that did not go."""

    def close(self) -> None: ...


def build_watch(
    layout: RunLayout, run: RunFile, attempt: Attempt, settings: Settings, station: Station | None = None
) -> Watch:
    """`station`: where the watcher stands; by the name of this machine, if nobody says."""
    if run.recipe == FOREIGN_RECIPE:
        return OutsideWatch(layout, attempt, settings)
    return InsideWatch(attempt, settings, station or find_station(attempt))
