"""Looks at all ranks of one attempt on this host: their pulses, and what the system says of their processes, as one sight.

    eye = Eye(pulses, attempt=1, world_size=2)
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
from paceline.supervise.rank_process import HeldProcess, is_hidden, open_process
from paceline.telemetry.pulse import Pulse, PulseReader

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

    def __init__(self, pulses: Path, attempt: int, world_size: int) -> None:
        self.pulses = pulses
        self._attempt = attempt
        self._world_size = world_size
        self._host = socket.gethostname()
        self._poll = select.poll()
        self._looked = time.monotonic()
        self._watched_s = self._looked
        self._groups = CpuGroups()
        self._ranks = [
            _RankEye(pulses, attempt, rank, world_size, self._poll, self._groups) for rank in range(world_size)
        ]

    @property
    def processes(self) -> dict[int, HeldProcess]:
        """The ranks' processes, as far as they have been seen here."""
        return {rank: eye.process for rank, eye in enumerate(self._ranks) if eye.process is not None}

    def look(self) -> Sight:
        """What there is to see; its `monotonic` counts only time in which somebody watched."""
        now = time.monotonic()
        self._watched_s += min(now - self._looked, MOST_BETWEEN_S)
        self._looked = now
        self._groups.forget()
        seen = [eye.look(now) for eye in self._ranks]
        ranks = tuple(RankSight(rank, self._host, *each) for rank, each in enumerate(seen))
        return Sight(time.time(), self._watched_s, self._attempt, self._world_size, ranks)

    def wake_on(self, descriptor: int) -> None:
        """`wait` also ends when there is something to be read here."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Until then, or until a process ends: how it ended is known only for a moment."""
        self._poll.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        for eye in self._ranks:
            eye.close()
