"""Blocks of a few steps, all ranks beside each other: who waited how long, and who lost time in which phase.

Collector({0: pulse, 1: pulse}).add({0: later, 1: later})   -> [Block(excess={0: -0.11, 1: 0.11}, own_ms={1: {"forward": 26.2, …}, …}, …)]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from paceline.diagnose.limits import STEP_PHASES
from paceline.telemetry.pulse import OWN_PHASES, Own, Pulse

BLOCK_STEPS = 5
_LEAST_STEPS = 3
"""between two looks, for times in phases"""
_MOST_ROWS = 30
_MOST_WAITS = 640
"""steps that are compared at one look, the newest ones, and waits in them: many ranks take longer to compare"""
_TYPICAL = 5


class Row(NamedTuple):
    """One step of all ranks."""

    waits_ms: Sequence[float]
    """in the order of the ranks"""
    own: Sequence[Own]
    """likewise; empty: not all of them tell"""


@dataclass(frozen=True)
class Block:
    """A few steps of all ranks."""

    steps: int
    last_step: int
    step_ms: float
    excess: Mapping[int, float]
    """rank -> share of a step that it is slower than the others"""
    own_ms: Mapping[int, Mapping[str, float]]
    """rank -> phase -> ms per step, without waiting for the others"""
    waits_ms: Mapping[int, float]
    """per step; empty: nobody tells how long it waits"""
    idle: Mapping[int, float] = field(default_factory=dict)
    """rank -> share of a step that it is idle longer than the others, by itself; empty: not all ranks tell"""
    rows: Sequence[Row] = ()
    """its steps, where `idle` is known: for whoever wants to know more about an accused rank"""

    def lost_ms(self, rank: int, phase: str) -> float:
        """How much longer it was in that phase of a step than the median of the others."""
        others = [own[phase] for other, own in self.own_ms.items() if other != rank]
        return self.own_ms[rank][phase] - median(others)

    def idled_ms(self, rank: int, phase: str) -> float:
        """How much longer it was idle there than the median of the others."""
        phase_at, rank_at = OWN_PHASES.index(phase), self._place(rank)
        return median(_above_others([own[phase_at] for own in row.own])[rank_at] for row in self.rows)

    def without_queues(self, rank: int) -> float:
        """Its excess, as if nobody had ever to wait for a core."""
        rows = [
            [-wait_ms - queued_ms for wait_ms, (*_, queued_ms) in zip(row.waits_ms, row.own, strict=True)]
            for row in self.rows
        ]
        return _compare(rows, self.step_ms)[self._place(rank)]

    def _place(self, rank: int) -> int:
        return list(self.excess).index(rank)


class Collector:
    """Makes blocks of the same ranks' pulses, sight after sight."""

    def __init__(self, begun: Mapping[int, Pulse]) -> None:
        self._begun = dict(begun)
        self._used = min((pulse.waits for pulse in begun.values()), default=0)
        """waits that have been compared, or are too old for it"""
        self._rows: list[Row] = []
        """steps that are in no block yet"""
        self._steps_ms: deque[float] = deque(maxlen=_TYPICAL)

    def add(self, now: Mapping[int, Pulse]) -> list[Block]:
        """The blocks that are complete by now; mostly one, none or two."""
        tells = all(pulse.recent_ms for pulse in now.values())
        if tells:
            self._take(now)
        steps = min(pulse.step - self._begun[rank].step for rank, pulse in now.items())
        waits = min(pulse.waits - self._begun[rank].waits for rank, pulse in now.items())
        # On a GPU only every so many steps tell their wait: a block is some steps, not some waits.
        every = max(1, round(steps / waits)) if waits > 0 else 1
        rows = max(1, BLOCK_STEPS // every)
        if steps < _LEAST_STEPS or (tells and len(self._rows) < rows):
            return []
        spent = {rank: _spent_ms(self._begun[rank], pulse) for rank, pulse in now.items()}
        own = {rank: _without_wait(spent[rank], self._begun[rank], pulse) for rank, pulse in now.items()}
        self._begun = dict(now)
        self._steps_ms.append(median(sum(phases.values()) for phases in spent.values()))
        step_ms = median(self._steps_ms)
        if step_ms <= 0:
            return []
        last_step = min(pulse.step for pulse in now.values())
        if not tells:
            return [build_window(steps, last_step, step_ms, spent, {})]
        blocks = []
        while len(self._rows) >= rows:
            blocks.append(_build_block(list(now), self._rows[:rows], rows * every, last_step, step_ms, own))
            del self._rows[:rows]
        return blocks

    def _take(self, now: Mapping[int, Pulse]) -> None:
        """The steps that every rank still remembers. They count alike on all ranks: each has waited once in each step."""
        newest = min(pulse.waits for pulse in now.values())
        most = max(BLOCK_STEPS, min(_MOST_ROWS, _MOST_WAITS // len(now)))
        oldest = max(self._used, newest - most, *(pulse.waits - len(pulse.recent_ms) for pulse in now.values()))
        self._used = max(self._used, newest)
        if oldest >= newest:
            return
        waits = zip(*(pulse.list_waits(oldest, newest) for pulse in now.values()), strict=True)
        if all(pulse.recent_own_ms for pulse in now.values()):
            own = zip(*(pulse.list_own(oldest, newest) for pulse in now.values()), strict=True)
            self._rows += map(Row, waits, own)
        else:
            self._rows += [Row(of_step, ()) for of_step in waits]


def build_window(
    steps: int,
    last_step: int,
    step_ms: float,
    spent_ms: Mapping[int, Mapping[str, float]],
    waits_ms: Mapping[int, float],
) -> Block:
    """A block of which means per step are known: each rank's time in each phase, and its wait within backward."""
    # Sharded models do not tell how long they wait: only the time for its data is surely a rank's own.
    late = [-wait for wait in waits_ms.values()] if waits_ms else [phases["data"] for phases in spent_ms.values()]
    excess = dict(zip(spent_ms, _compare([late], step_ms), strict=True))
    own = {
        rank: {**phases, "backward": phases["backward"] - waits_ms.get(rank, 0.0)} for rank, phases in spent_ms.items()
    }
    return Block(steps, last_step, step_ms, excess, own, dict(waits_ms))


def _build_block(
    ranks: Sequence[int],
    rows: Sequence[Row],
    steps: int,
    last_step: int,
    step_ms: float,
    own_ms: Mapping[int, Mapping[str, float]],
) -> Block:
    excess = _compare([[-wait for wait in row.waits_ms] for row in rows], step_ms)
    waits_ms = map(median, zip(*(row.waits_ms for row in rows), strict=True))
    told = (
        steps,
        last_step,
        step_ms,
        dict(zip(ranks, excess, strict=True)),
        own_ms,
        dict(zip(ranks, waits_ms, strict=True)),
    )
    if not all(row.own for row in rows):
        return Block(*told)
    idle = _compare([[data + forward + backward for data, forward, backward, _ in row.own] for row in rows], step_ms)
    return Block(*told, dict(zip(ranks, idle, strict=True)), rows)


def _compare(rows: Sequence[Sequence[float]], step_ms: float) -> list[float]:
    """How much each rank is above the others. Medians: a step in which somebody paused says nothing about the pace."""
    columns = zip(*map(_above_others, rows), strict=True)
    return _share(map(median, columns), step_ms)


def _share(more_ms: Iterable[float], step_ms: float) -> list[float]:
    """Of a step as it would be without the rank's excess."""
    return [more / max(step_ms - max(more, 0.0), step_ms / 10) for more in more_ms]


def _spent_ms(begun: Pulse, now: Pulse) -> dict[str, float]:
    """Per step, in each phase of a step."""
    steps = now.step - begun.step
    return {
        phase: 1000 * (now.spent_s.get(phase, 0.0) - begun.spent_s.get(phase, 0.0)) / steps for phase in STEP_PHASES
    }


def _without_wait(spent: Mapping[str, float], begun: Pulse, now: Pulse) -> dict[str, float]:
    """Backward ends with the wait for the others, which is not the rank's own time."""
    waits = now.waits - begun.waits
    wait_ms = (now.waited_ms - begun.waited_ms) / waits if waits > 0 else 0.0
    return {**spent, "backward": spent["backward"] - wait_ms}


def _above_others(values: Sequence[float]) -> list[float]:
    """How much each is above the median of the others; sorted once, because there may be many."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 0:
        low, high = ordered[middle - 1], ordered[middle]
        return [value - (low if value > low else high) for value in values]
    below, own, above = ordered[middle - 1 : middle + 2]
    # Without one of the upper half the median lies between the middle and the next lower one, and so on.
    without_upper, without_own, without_lower = (below + own) / 2, (below + above) / 2, (own + above) / 2
    return [
        value - (without_upper if value > own else without_lower if value < own else without_own) for value in values
    ]
