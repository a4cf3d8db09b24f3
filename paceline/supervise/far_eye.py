"""Looks at one rank of another host, of which nothing is here but the pulses that come from there.

    eye = FarEye(pulses, attempt=1, rank=2)
    eye.look(now)       -> its last pulse, and what there is to say about how it came

Times are counted by the watcher's own clock, from when a pulse came: the other host's clock is never compared with this one's.
"""

from __future__ import annotations

from pathlib import Path

from paceline.diagnose.sight import Hearsay
from paceline.telemetry.pulse import Pulse, PulseReader, remote_pulses

SILENT_S = 2.0
"""without a pulse, of which two a second are sent: where the rank is now, nobody here knows"""


class FarEye:
    """One rank of one attempt."""

    def __init__(self, pulses: Path, attempt: int, rank: int) -> None:
        self._pulses = remote_pulses(pulses)
        self._attempt = attempt
        self._rank = rank
        self._reader: PulseReader | None = None
        self._last: Pulse | None = None
        self._moved: float | None = None
        self._stored = 0
        self._heard: float | None = None

    def look(self, now: float) -> tuple[Pulse | None, Hearsay]:
        """`now`: by the clock that the sight has."""
        if self._reader is None:
            try:
                self._reader = PulseReader(self._pulses, self._rank)
            except OSError:
                return None, Hearsay()
        pulse = self._reader.read() or self._last
        if pulse is None or pulse.attempt != self._attempt:
            return None, Hearsay()
        if pulse is not self._last:
            self._last, self._moved = pulse, now
        stored = self._reader.stored
        if stored != self._stored:
            self._stored, self._heard = stored, now
        silent_s = now - self._heard if self._heard is not None else 0.0
        return pulse, Hearsay(self._moved, silent_s if silent_s > SILENT_S else 0.0)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
