"""What a person or a script sees of a running attempt at one moment, as plain data: each rank's place, rate, wait, memory, GPU; time left.

    glances = Glances(layout, attempt)
    glances.take(sight, findings)      -> {"step": 120, "total_steps": 1000, "left_s": 61.0, "ranks": [{"rank": 0, …}], "findings": […]}

Rates and waits are of the last seconds of steps: an evaluation or a save is no pace. What a pulse does not tell (memory, GPU), and ranks of other hosts, come from heartbeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from paceline.diagnose.finding import Finding
from paceline.diagnose.limits import STEP_PHASES
from paceline.diagnose.sight import RankSight, Sight
from paceline.files import read_last_records
from paceline.supervise.incident import describe_ranks
from paceline.telemetry.follow import Follower
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.numbers import is_number
from paceline.telemetry.pulse import Pulse
from paceline.telemetry.run_file import Attempt

VERSION = 1
_OVER_S = 10.0
_TAIL_BYTES = 4096
_PACED = (*STEP_PHASES, "check", "log")
"""phases that make up the pace; the others (evaluate, checkpoint, compile …) come now and then, and last"""


class Glances:
    """One attempt; remembers the last seconds."""

    def __init__(self, layout: RunLayout, attempt: Attempt) -> None:
        self._layout = layout
        self._attempt = attempt
        self._events = Follower(layout.events)
        self._total: int | None = None
        self._last: dict[int, deque[tuple[float, Pulse]]] = {}
        """of each rank, with the time in steps that we have seen by then"""
        self._looked: dict[int, tuple[float, float]] = {}
        """when, and how long it had been in steps since its process began"""

    def take(self, sight: Sight, findings: Sequence[Finding], told_step: int | None = None) -> dict[str, Any]:
        """`told_step`: of a script that has no pulse, by its output."""
        for event in self._events.records():
            if event.get("kind") == "plan" and event.get("attempt") == self._attempt.attempt:
                total = _number(event.get("total_steps"))
                self._total = int(total) if total is not None else None
        ranks = [
            described | self._measure(seen, sight)
            for described, seen in zip(describe_ranks(sight), sight.ranks, strict=True)
        ]
        steps = [rank["step"] for rank in ranks if rank["step"] is not None]
        rates = [rank["steps_per_s"] for rank in ranks if rank["steps_per_s"]]
        step = min(steps, default=told_step)
        left_s = None
        if self._total is not None and step is not None and rates:
            left_s = round(max(0, self._total - step) / min(rates), 1)
        return {
            "v": VERSION,
            "time": sight.time,
            "run": str(self._layout.root),
            "attempt": self._attempt.attempt,
            "world_size": self._attempt.world_size,
            "step": step,
            "total_steps": self._total,
            "steps_per_s": min(rates, default=None),
            "left_s": left_s,
            "ranks": ranks,
            "findings": [finding.to_record() for finding in findings],
        }

    def _measure(self, seen: RankSight, sight: Sight) -> dict[str, Any]:
        """What describes a rank beside where it is."""
        measured: dict[str, Any] = {"steps_per_s": None, "wait_ms": None, "gpu": None}
        beat = self._read_beat(seen.rank)
        if beat.get("attempt") == self._attempt.attempt:
            numbers = {name: _number(beat.get(name)) for name in ("wait_ms", "memory_gib", "step", "pid")}
            gpu = beat.get("gpu")
            if isinstance(gpu, dict):
                measured["gpu"] = {name: _number(value) for name, value in gpu.items()}
            measured["wait_ms"] = numbers["wait_ms"]
            if numbers["memory_gib"] is not None:
                measured["memory_gib"] = numbers["memory_gib"]
            if seen.pulse is None:  # it is on another host, or its pulse has gone
                host = beat.get("host")
                words = {"phase": str(beat.get("phase")), "host": host if isinstance(host, str) else seen.host}
                measured |= {"step": numbers["step"], "pid": numbers["pid"], **words}
        if seen.pulse is None:
            return measured
        history = self._remember(seen, seen.pulse, sight)
        (before, first), (now, last) = history[0], history[-1]
        if now > before:
            measured["steps_per_s"] = round((last.step - first.step) / (now - before), 6)
        if last.waits > first.waits:
            measured["wait_ms"] = round((last.waited_ms - first.waited_ms) / (last.waits - first.waits), 3)
        return measured

    def _remember(self, seen: RankSight, pulse: Pulse, sight: Sight) -> deque[tuple[float, Pulse]]:
        rank = seen.rank
        history = self._last.setdefault(rank, deque())
        paced_s = sum(pulse.spent_s.get(phase, 0.0) for phase in _PACED)
        paced_s += sight.held_s(seen) or 0.0 if pulse.phase in _PACED else 0.0
        looked, before_s = self._looked.get(rank, (sight.monotonic, paced_s))
        self._looked[rank] = sight.monotonic, paced_s
        passed_s = sight.monotonic - looked
        clock_s, before = history[-1] if history else (0.0, pulse)
        if pulse.spent_s and before.pid == pulse.pid:
            passed_s = min(passed_s, max(0.0, paced_s - before_s))
        if history and passed_s <= 0:
            history.pop()  # a pause may last for hours
        history.append((clock_s + passed_s, pulse))
        while len(history) > 2 and history[-1][0] - history[1][0] >= _OVER_S:
            history.popleft()
        return history

    def _read_beat(self, rank: int) -> dict[str, Any]:
        """Its last one; empty if there is none, or nobody may read it."""
        try:
            beats = read_last_records(self._layout.heartbeat(rank), _TAIL_BYTES)
        except OSError:
            return {}
        return beats[-1] if beats else {}


def _number(value: object) -> float | None:
    """What another version wrote may be anything."""
    return value if is_number(value) else None
