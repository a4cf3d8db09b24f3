"""Looks at the processes of a foreign script and at its output, as one sight; its ranks are found by their environment."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from pathlib import Path

from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.supervise.ending import kill_attempt
from paceline.supervise.eye import MOST_BETWEEN_S
from paceline.supervise.rank_process import HeldProcess, open_process
from paceline.supervise.tree import find_ranks, hold_descendants, list_children
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseReader
from paceline.telemetry.run_file import Attempt

_SEARCH_EVERY_S = 2.0


class ScriptEye:
    """One attempt. What runs the script for us has a pulse, which tells the step that its output told last."""

    def __init__(self, layout: RunLayout, attempt: Attempt) -> None:
        self.processes: dict[int, HeldProcess] = {}
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
        living = [process for process in self.processes.values() if process.is_alive]
        is_known = len(living) >= self._attempt.world_size
        if self._runner is not None and not is_known and now - self._searched >= _SEARCH_EVERY_S:
            self._searched = now
            self._search(self._runner)
        ranks = [
            RankSight(rank, self._host, None, self._look_at(self.processes[rank]) if rank in self.processes else None)
            for rank in range(max([self._attempt.world_size, *(rank + 1 for rank in self.processes)]))
        ]
        return Sight(time.time(), self._watched_s, self._attempt.attempt, len(ranks), tuple(ranks))

    def kill(self) -> list[int]:
        """Ends the script with all its processes; what runs it for us then says how it ended."""
        if self._runner is None:
            return []
        script = hold_descendants({self._runner.pid: self._runner}, list_children())
        try:
            return kill_attempt(script.values(), None)
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
        self.processes, self._reader, self._runner = {}, None, None

    def _look_at(self, process: HeldProcess) -> ProcessSight:
        seen = process.look()
        if seen.state in ("zombie", "gone"):
            self._forget_exit(process)
        return seen

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

    def _search(self, runner: HeldProcess) -> None:
        found = find_ranks(runner)
        for rank, process in found.items():
            known = self.processes.get(rank)
            if known is not None and known.pid == process.pid:
                process.close()
                continue
            if known is not None:
                self._forget_exit(known)
                known.close()
            self._poll.register(process.descriptor, select.POLLIN)
            self.processes[rank] = process
