"""Which rank slows the others down: the one that waits least, step after step, or the one that is idle where the others work.

A step takes equally long on all ranks, because all-reduce makes them wait for each other; what differs is how long each of them waits.
That sees whatever makes a rank late, but on a loaded machine everybody is late now and then. Where ranks tell how long they were idle by
themselves (in data, forward or backward: for a disk, a device, a lock), cores and their queues have no part in it, and little is enough.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.diagnose.blocks import Collector
from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import Sight
from paceline.diagnose.weighing import ERROR, Weighing
from paceline.telemetry.pulse import Pulse

_RANK_S = 1 / 64
"""of a second between two blocks, for each rank: many ranks need more time to compare, and have more to tell"""


class Stragglers:
    """Follows how long each rank waits for the others."""

    def __init__(self, error: float = ERROR) -> None:
        self._error = error
        self._attempt: int | None = None
        self._compared = 0.0
        self._restart({})

    def see(self, sight: Sight) -> list[Finding]:
        """Who is a straggler at this moment; nobody where not all ranks can be seen: who waits least among some may wait for another."""
        if sight.unseen:
            return []
        pulses = {
            seen.rank: seen.pulse
            for seen in sight.ranks
            if seen.pulse is not None and seen.pulse.attempt == sight.attempt and seen.pulse.step > 0
        }
        if sight.attempt != self._attempt or pulses.keys() != self._ranks:
            is_same = sight.attempt == self._attempt and pulses.keys() < self._ranks
            if not is_same:  # a reading that failed once says nothing; another set of ranks is another comparison
                self._attempt = sight.attempt
                self._restart(pulses)
            return self._weighing.findings()
        self._weighing.hosts = {seen.rank: seen.host for seen in sight.ranks}
        if len(pulses) >= 2 and sight.monotonic - self._compared >= _RANK_S * len(pulses):
            self._compared = sight.monotonic
            for block in self._collector.add(pulses):
                self._weighing.add(block)
        return self._weighing.findings()

    def _restart(self, pulses: Mapping[int, Pulse]) -> None:
        self._ranks = set(pulses)
        self._collector = Collector(pulses)
        self._weighing = Weighing(pulses, self._error)
