"""Looks at all ranks of one attempt: their pulses, and what the system says of the processes of those on this host, as one sight.

    eye = Eye(attempt, station)
    sight = eye.look()            # four times a second
    eye.wait(0.25)                # or until a process ends

Everything stays open between two looks. A rank that gets on is not asked for more than its pulse, but once a second; of more than 32 not
even that often.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import replace
from pathlib import Path

from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.supervise.cpu_group import CpuGroups, HeldBack
from paceline.supervise.far_eye import FarEye
from paceline.supervise.rank_process import HeldProcess, is_hidden, open_process
from paceline.supervise.station import Station
from paceline.telemetry.pulse import Pulse, PulseReader
from paceline.telemetry.run_file import Attempt

_PROCESS_EVERY_S = 1.0
_PER_RANK_S = 1 / 32
"""for each rank of the run: what a rank that gets on is asked besides is two or three files to read"""
MOST_BETWEEN_S = 1.0
"""of the time between two looks: a machine that stood still (a paused virtual machine, a frozen group) is no rank that hangs"""


class _RankEye:
    """One rank."""

    def __init__(
        self, pulses: Path, attempt: int, rank: int, world_size: int, poll: select.poll, groups: CpuGroups
    ) -> None:
        self._pulses = pulses
        self._attempt = attempt
        self._group_every_s = _PER_RANK_S * world_size
        self._process_every_s = max(_PROCESS_EVERY_S, _PER_RANK_S * world_size)
        self._rank = rank
        self._poll = poll
        self._groups = groups
        self._reader: PulseReader | None = None
        self._last: Pulse | None = None
        self.process: HeldProcess | None = None
        self._seen: ProcessSight | None = None
        self._seen_at = 0.0
        self._held_back: HeldBack | None = None
        self._asked_group = 0.0

    def look(self, now: float) -> tuple[Pulse | None, ProcessSight | None]:
        if self._reader is None:
            try:
                self._reader = PulseReader(self._pulses, self._rank)
            except OSError:
                return None, None
        pulse = self._reader.read() or self._last
        if pulse is None or pulse.attempt != self._attempt:
            return None, None
        if self._last is None or pulse.pid != self._last.pid:
            self._take(pulse.pid)
        is_moving, self._last = pulse is not self._last, pulse
        if not is_moving or now - self._seen_at >= self._process_every_s:
            self._look_at_process(pulse.pid, now)
        if is_moving and self.process is not None and now - self._asked_group >= self._group_every_s:
            self._asked_group, self._held_back = now, self._groups.read(self.process.read_groups())
        held, seen = self._held_back, self._seen
        if held is not None and seen is not None and (held.group, held.seconds) != (seen.group, seen.held_back_s):
            self._seen = seen = replace(seen, group=held.group, held_back_s=held.seconds)
        return pulse, seen

    def _take(self, pid: int) -> None:
        self.close_process()
        self.process = open_process(pid, f"{self._pulses}/")
        self._seen_at = 0.0
        if self.process is not None:
            self._poll.register(self.process.descriptor, select.POLLIN)

    def _look_at_process(self, pid: int, now: float) -> None:
        self._seen_at = now
        if self.process is not None:
            self._seen = self.process.look()
            if self._seen.state in ("zombie", "gone"):
                self.forget_exit()
        else:
            self._seen = ProcessSight(pid, "unknown" if is_hidden(pid) else "gone")

    def forget_exit(self) -> None:
        """Its end has been seen: it does not wake anybody again."""
        if self.process is not None:
            try:
                self._poll.unregister(self.process.descriptor)
            except KeyError:
                return

    def close_process(self) -> None:
        if self.process is not None:
            self.forget_exit()
            self.process.close()
            self.process = None

    def close(self) -> None:
        self.close_process()
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Eye:
    """One per attempt."""

    def __init__(self, attempt: Attempt, station: Station) -> None:
        pulses, number, world_size = Path(attempt.pulses), attempt.attempt, attempt.world_size
        self._attempt = number
        self._world_size = world_size
        here = socket.gethostname()
        self._hosts = [attempt.host_of(rank) or here for rank in range(world_size)]
        self._poll = select.poll()
        self._looked = time.monotonic()
        self._watched_s = self._looked
        self._groups = CpuGroups()
        here_ranks = [rank for rank in range(world_size) if station.is_here(rank)]
        self._ranks = {
            rank: _RankEye(pulses, number, rank, len(here_ranks), self._poll, self._groups) for rank in here_ranks
        }
        far = [rank for rank in range(world_size) if rank not in self._ranks]
        self._far = {rank: FarEye(pulses, number, rank) for rank in far}

    @property
    def processes(self) -> dict[int, HeldProcess]:
        """The ranks' processes, as far as they have been seen here."""
        return {rank: eye.process for rank, eye in self._ranks.items() if eye.process is not None}

    def look(self) -> Sight:
        """What there is to see; its `monotonic` counts only time in which somebody watched."""
        now = time.monotonic()
        self._watched_s += min(now - self._looked, MOST_BETWEEN_S)
        self._looked = now
        self._groups.forget()
        ranks = [RankSight(rank, self._hosts[rank], *eye.look(now)) for rank, eye in self._ranks.items()]
        if self._far:
            ranks += [self._look_far(rank, eye) for rank, eye in self._far.items()]
            ranks.sort(key=lambda seen: seen.rank)
        return Sight(time.time(), self._watched_s, self._attempt, self._world_size, tuple(ranks))

    def _look_far(self, rank: int, eye: FarEye) -> RankSight:
        pulse, hearsay = eye.look(self._watched_s)
        return RankSight(rank, self._hosts[rank], pulse, None, hearsay)

    def wake_on(self, descriptor: int) -> None:
        """`wait` also ends when there is something to be read here."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Until then, or until a process ends: how it ended is known only for a moment."""
        self._poll.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        for eye in self._ranks.values():
            eye.close()
        for far in self._far.values():
            far.close()
