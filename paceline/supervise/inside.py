"""Watches ranks that have pulses: the eye looks, `diagnose` judges."""

from __future__ import annotations

from pathlib import Path

from paceline.diagnose.finding import Finding
from paceline.diagnose.liveness import Liveness
from paceline.diagnose.memory import MemoryWatch
from paceline.diagnose.quota import QuotaWatch
from paceline.diagnose.sight import Sight
from paceline.diagnose.stragglers import Stragglers
from paceline.supervise.ending import kill_attempt
from paceline.supervise.eye import Eye
from paceline.supervise.rank_process import HeldProcess
from paceline.supervise.settings import Settings
from paceline.supervise.station import Station
from paceline.telemetry.pulse import pulse_path
from paceline.telemetry.run_file import Attempt


class InsideWatch:
    """One attempt of our worker, or of a loop with the SDK."""

    def __init__(self, attempt: Attempt, settings: Settings, station: Station) -> None:
        self.eye = Eye(attempt, station)
        self._proofs = _list_proofs(Path(attempt.pulses), station)
        self._liveness = Liveness(settings.limits)
        self._stragglers = Stragglers()
        self._has_begun = False
        self._memory = MemoryWatch()
        self._quota = QuotaWatch()

    @property
    def processes(self) -> dict[int, HeldProcess]:
        return self.eye.processes

    @property
    def told_step(self) -> None:
        return None

    def kill(self) -> list[int]:
        """Ends all ranks of this host with everything they started; the pids that did not go."""
        return kill_attempt(self.processes.values(), self._proofs)

    def look(self) -> tuple[Sight, list[Finding]]:
        sight = self.eye.look()
        if not self._has_begun and any(seen.pulse is not None for seen in sight.ranks):
            # Somebody who comes late: what the pulses have added up tells the pace, and since when a rank is where it is.
            self._has_begun = True
            self._liveness.begin(sight)
        judges = (self._liveness, self._stragglers, self._memory, self._quota)
        return sight, [finding for judge in judges for finding in judge.see(sight)]

    def close(self) -> None:
        self.eye.close()


def _list_proofs(pulses: Path, station: Station) -> tuple[str, ...]:
    """What a process has in its memory that is ours to end: two launchers on one machine may share the directory."""
    if station.ranks is None:
        return (f"{pulses}/",)
    return tuple(str(pulse_path(pulses, rank)) for rank in station.ranks)
