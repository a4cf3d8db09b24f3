"""Blocks of a few steps, all ranks beside each other: who waited how long, and who lost time in which phase.

Collector({0: pulse, 1: pulse}).add({0: later, 1: later})   -> [Block(excess={0: -0.11, 1: 0.11}, own_ms={1: {"forward": 26.2, …}, …}, …)]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
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

    waits_ms: Mapping[int, float]
    own: Mapping[int, Own]
    """empty: not all of them tell"""


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
        place = OWN_PHASES.index(phase)
        rows = [{each: own.idle_ms[place] for each, own in row.own.items()} for row in self.rows]
        return median(_above_others(row)[rank] for row in rows)

    def without_queues(self, rank: int) -> float:
        """Its excess, as if nobody had ever to wait for a core."""
        rows = [{each: -row.waits_ms[each] - own.queued_ms for each, own in row.own.items()} for row in self.rows]
        return _compare(rows, self.step_ms)[rank]


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
            # Sharded models do not tell how long they wait: only the time for its data is surely a rank's own.
            late = _above_others({rank: phases["data"] for rank, phases in spent.items()})
            return [Block(steps, last_step, step_ms, _share(late, step_ms), own, {})]
        blocks = []
        while len(self._rows) >= rows:
            blocks.append(_build_block(self._rows[:rows], rows * every, last_step, step_ms, own))
            del self._rows[:rows]
        return blocks

    def _take(self, now: Mapping[int, Pulse]) -> None:
        """The steps that every rank still remembers. They count alike on all ranks: each has waited once in each step."""
        newest = min(pulse.waits for pulse in now.values())
        most = max(BLOCK_STEPS, min(_MOST_ROWS, _MOST_WAITS // len(now)))
        oldest = max(self._used, newest - most, *(pulse.waits - len(pulse.recent_ms) for pulse in now.values()))
        tells_own = all(pulse.recent_own_ms for pulse in now.values())
        for number in range(oldest, newest):
            waits = {rank: pulse.recent_ms[number - pulse.waits] for rank, pulse in now.items()}
            self._rows.append(Row(waits, {rank: pulse.own(number) for rank, pulse in now.items()} if tells_own else {}))
        self._used = max(self._used, newest)


def _build_block(
    rows: Sequence[Row], steps: int, last_step: int, step_ms: float, own_ms: Mapping[int, Mapping[str, float]]
) -> Block:
    ranks = list(rows[0].waits_ms)
    excess = _compare([{rank: -wait for rank, wait in row.waits_ms.items()} for row in rows], step_ms)
    waits_ms = {rank: median(row.waits_ms[rank] for row in rows) for rank in ranks}
    if not all(row.own for row in rows):
        return Block(steps, last_step, step_ms, excess, own_ms, waits_ms)
    idle = _compare([{rank: sum(own.idle_ms) for rank, own in row.own.items()} for row in rows], step_ms)
    return Block(steps, last_step, step_ms, excess, own_ms, waits_ms, idle, rows)


def _compare(rows: Sequence[Mapping[int, float]], step_ms: float) -> dict[int, float]:
    """How much each rank is above the others. Medians: a step in which somebody paused says nothing about the pace."""
    above = [_above_others(row) for row in rows]
    return _share({rank: median(each[rank] for each in above) for rank in rows[0]}, step_ms)


def _share(more_ms: Mapping[int, float], step_ms: float) -> dict[int, float]:
    """Of a step as it would be without the rank's excess."""
    return {rank: more / max(step_ms - max(more, 0.0), step_ms / 10) for rank, more in more_ms.items()}


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


def _above_others(values: Mapping[int, float]) -> dict[int, float]:
    """How much each is above the median of the others; sorted once, because there may be many."""
    ordered = sorted(values, key=lambda key: values[key])
    places = {key: place for place, key in enumerate(ordered)}
    rest = len(ordered) - 1

    def at(place: int, without: int) -> float:
        return values[ordered[place if place < without else place + 1]]

    above = {}
    for key, value in values.items():
        own = places[key]
        middle = at(rest // 2, own) if rest % 2 else (at(rest // 2 - 1, own) + at(rest // 2, own)) / 2
        above[key] = value - middle
    return above
