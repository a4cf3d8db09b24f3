"""Looks at the processes of a foreign script and at its output, as one sight; its ranks are found by their environment.

Who the ranks are is asked again and again: a script may download for an hour before it starts them, and a launcher may start them anew when
one has died. Until there is one with a number, the script itself stands for rank 0. Ranks of one generation have lived together; who began
after a rank's end waits for nobody there, and a generation of which nobody lives is forgotten.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.supervise.ending import kill_attempt
from paceline.supervise.eye import MOST_BETWEEN_S
from paceline.supervise.rank_process import HeldProcess, open_process
from paceline.supervise.tree import find_ranks, hold_descendants, hold_script, list_children
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseReader
from paceline.telemetry.run_file import Attempt

_SEARCH_EVERY_S = 2.0
_SETTLED_EVERY_S = 10.0
"""while all that are known live, and the last search found nobody else: every process of the machine has to be looked at"""


@dataclass
class _Rank:
    """One process that is a rank, or stands for one."""

    process: HeldProcess
    began_s: float
    """by the clock that began with the machine"""
    ended_s: float | None = None
    """by the same one: when it was first seen to have ended"""


class ScriptEye:
    """One attempt. What runs the script for us has a pulse, which tells the step that its output told last."""

    def __init__(self, layout: RunLayout, attempt: Attempt) -> None:
        self.step: int | None = None
        self._layout = layout
        self._attempt = attempt
        self._pulses = Path(attempt.pulses)
        self._host = socket.gethostname()
        self._poll = select.poll()
        self._reader: PulseReader | None = None
        self._runner: HeldProcess | None = None
        self._looked = self._watched_s = time.monotonic()
        self._searched = 0.0
        self._ranks: dict[int, _Rank] = {}
        self._has_numbers = False
        """ranks with a number have been seen: from then on nobody else is taken for one, be it that all of them have gone"""
        self._is_settled = False

    @property
    def processes(self) -> dict[int, HeldProcess]:
        return {number: rank.process for number, rank in self._ranks.items()}

    @property
    def output_size(self) -> int:
        """Bytes that the script has printed."""
        try:
            return self._layout.log(0).stat().st_size
        except OSError:
            return 0

    def look(self) -> Sight:
        now = time.monotonic()
        self._watched_s += min(now - self._looked, MOST_BETWEEN_S)
        self._looked = now
        self._find_runner()
        every_s = _SETTLED_EVERY_S if self._is_settled else _SEARCH_EVERY_S
        if self._runner is not None and now - self._searched >= every_s:
            self._searched = now
            self._is_settled = not self._search(self._runner) and self._has_numbers
        seen = {number: self._look_at(rank) for number, rank in self._ranks.items()}
        self._forget_generations()
        ranks = [
            RankSight(number, self._host, None, seen[number] if number in self._ranks else None)
            for number in range(max([self._attempt.world_size, *(number + 1 for number in self._ranks)]))
        ]
        return Sight(time.time(), self._watched_s, self._attempt.attempt, len(ranks), tuple(ranks))

    def kill(self) -> list[int]:
        """Ends the script with all its processes; what runs it for us then says how it ended."""
        if self._runner is None:
            return []
        script = hold_descendants({self._runner.pid: self._runner}, list_children())
        try:
            return kill_attempt(script.values())
        finally:
            for process in script.values():
                process.close()

    def wake_on(self, descriptor: int) -> None:
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Until then, or until a rank ends: how it ended is known only for a moment."""
        self._poll.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        for process in (*self.processes.values(), *([self._runner] if self._runner is not None else [])):
            process.close()
        if self._reader is not None:
            self._reader.close()
        self._ranks, self._reader, self._runner = {}, None, None

    def _look_at(self, rank: _Rank) -> ProcessSight:
        seen = rank.process.look()
        if seen.state in ("zombie", "gone"):
            self._is_settled = False  # its successor may come
            self._forget_exit(rank.process)
            rank.ended_s = rank.ended_s or time.clock_gettime(time.CLOCK_BOOTTIME)
        return seen

    def _forget_generations(self) -> None:
        """Those who ended, and with whom nobody lives any more: a launcher that brings its ranks back waits for none of them."""
        began_s = [rank.began_s for rank in self._ranks.values() if rank.ended_s is None]
        for number, rank in list(self._ranks.items()):
            if rank.ended_s is not None and not any(each <= rank.ended_s for each in began_s):
                self._drop(number)

    def _drop(self, number: int) -> None:
        process = self._ranks.pop(number).process
        self._forget_exit(process)
        process.close()

    def _forget_exit(self, process: HeldProcess) -> None:
        """It does not wake anybody again."""
        with contextlib.suppress(KeyError):
            self._poll.unregister(process.descriptor)

    def _find_runner(self) -> None:
        if self._reader is None:
            try:
                self._reader = PulseReader(self._pulses, 0)
            except OSError:
                return
        pulse = self._reader.read()
        if pulse is not None:
            self.step = pulse.step or None
            if self._runner is None:
                self._runner = open_process(pulse.pid, f"{self._pulses}/")

    def _search(self, runner: HeldProcess) -> bool:
        """Whether there was anybody new."""
        found = find_ranks(runner)
        if found and not self._has_numbers:
            self._has_numbers = True
            for number in list(self._ranks):  # the script itself, which stood for them
                self._drop(number)
        taken = [self._take(number, process) for number, process in found.items()]
        if not self._has_numbers and not self._ranks:
            script = hold_script(runner)
            taken += [self._take(0, script)] if script is not None else []
        return any(taken)

    def _take(self, number: int, process: HeldProcess) -> bool:
        known = self._ranks.get(number)
        began_s = process.read_began_s()
        if began_s is None or (known is not None and known.process.is_alive):
            process.close()  # it has gone already; or it is known, or another job of the same script has that number
            return False
        if known is not None:
            self._drop(number)
        self._poll.register(process.descriptor, select.POLLIN)
        self._ranks[number] = _Rank(process, began_s)
        return True
