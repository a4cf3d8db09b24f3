"""Blocks of a few steps, all ranks beside each other: who waited how long, and who lost time in which phase.

Collector({0: pulse, 1: pulse}).add({0: later, 1: later})   -> [Block(excess={0: -0.11, 1: 0.11}, own_ms={1: {"forward": 26.2, …}, …}, …)]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.telemetry.pulse import Pulse

STEP_PHASES = ("data", "forward", "backward", "optimizer", "step")
BLOCK_STEPS = 5
_LEAST_STEPS = 3
"""between two looks, for times in phases"""
_MOST_ROWS = 30
_MOST_WAITS = 640
"""steps that are compared at one look, the newest ones, and waits in them: many ranks take longer to compare"""
_TYPICAL = 5
_BURN_IN = 4
"""blocks from which the noise is learned at first"""
_LAG = 10
"""blocks: the newest ones may be the beginning of something, and are no part of the slow noise"""
_KEPT = 80
_EVERY = 5
"""blocks after which the slow noise is measured again"""
_SIGMA = 1.4826
"""median of absolute deviations -> standard deviation"""
_EIGHTIETH = 1.2816
"""the 80th percentile of absolute deviations, in standard deviations: it sees heavy tails, and still no single pause"""
_NOISIEST = 0.5
_CAUTION = 3.0
"""a spread that is known from n changes may be larger by this much / n"""


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

    def lost_ms(self, rank: int, phase: str) -> float:
        """How much longer it was in that phase of a step than the median of the others."""
        return self.own_ms[rank][phase] - median(own[phase] for other, own in self.own_ms.items() if other != rank)


class Collector:
    """Makes blocks of the same ranks' pulses, sight after sight."""

    def __init__(self, begun: Mapping[int, Pulse]) -> None:
        self._begun = dict(begun)
        self._used = min((pulse.waits for pulse in begun.values()), default=0)
        """waits that have been compared, or are too old for it"""
        self._rows: list[dict[int, float]] = []
        """waits of one step each that are in no block yet"""
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
            excess, waited = _compare(self._rows[:rows], step_ms)
            blocks.append(Block(rows * every, last_step, step_ms, excess, own, waited))
            del self._rows[:rows]
        return blocks

    def _take(self, now: Mapping[int, Pulse]) -> None:
        """The steps that every rank still remembers. They count alike on all ranks: each has waited once in each step."""
        newest = min(pulse.waits for pulse in now.values())
        most = max(BLOCK_STEPS, min(_MOST_ROWS, _MOST_WAITS // len(now)))
        oldest = max(self._used, newest - most, *(pulse.waits - len(pulse.recent_ms) for pulse in now.values()))
        for number in range(oldest, newest):
            self._rows.append({rank: pulse.recent_ms[number - pulse.waits] for rank, pulse in now.items()})
        self._used = max(self._used, newest)


def _compare(rows: Sequence[Mapping[int, float]], step_ms: float) -> tuple[dict[int, float], dict[int, float]]:
    """(excess, wait) of each rank. Medians: a step in which somebody paused says nothing about the pace."""
    late = [_above_others({rank: -wait for rank, wait in row.items()}) for row in rows]
    more = {rank: median(each[rank] for each in late) for rank in rows[0]}
    return _share(more, step_ms), {rank: median(row[rank] for row in rows) for rank in rows[0]}


def _share(more_ms: Mapping[int, float], step_ms: float) -> dict[int, float]:
    """Of a step as it would be without the rank's excess."""
    return {rank: more / max(step_ms - max(more, 0.0), step_ms / 10) for rank, more in more_ms.items()}


class Noise:
    """The spread of one block's excess, as far as it is nobody's fault."""

    def __init__(self) -> None:
        self.size: float | None = None
        """None: not known yet"""
        self._blocks: deque[Block] = deque(maxlen=_KEPT)
        self._changes: deque[float] = deque(maxlen=_KEPT)
        self._slow = 0.0
        self._added = 0

    def add(self, block: Block) -> None:
        """From what changes between two blocks, to which a rank that is always slow adds nothing; and from how each rank wandered about
        its own level, which is more where other programs come and go."""
        if self._blocks:
            before = self._blocks[-1].excess
            # What is beyond half a step is no noise, and how much it is does not matter.
            self._changes.append(median(abs(_clip(each) - _clip(before[rank])) for rank, each in block.excess.items()))
        self._blocks.append(block)
        self._added += 1
        if len(self._blocks) < _BURN_IN:
            return
        if self._added % _EVERY == 0 and len(self._blocks) >= 2 * _LAG:
            self._slow = self._measure_slow()
        ordered = sorted(self._changes)
        usual = ordered[int(0.8 * len(ordered))] / _EIGHTIETH / 2**0.5
        self.size = max(usual, self._slow) * (1 + _CAUTION / len(ordered))

    def _measure_slow(self) -> float:
        old = list(self._blocks)[:-_LAG]
        deviations = []
        for rank in old[-1].excess:
            values = [_clip(block.excess[rank]) for block in old]
            level = median(values)
            deviations += [abs(value - level) for value in values]
        return _SIGMA * median(deviations)


def _clip(excess: float) -> float:
    return max(-_NOISIEST, min(_NOISIEST, excess))


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
