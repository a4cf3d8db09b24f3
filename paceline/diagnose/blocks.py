"""Blocks of a few steps, all ranks beside each other: who waited how long, and who lost time in which phase.

compare({0: earlier, 1: earlier}, {0: now, 1: now})   -> Block(excess={0: -0.11, 1: 0.11}, lost_ms={1: {"forward": 6.2, …}, …}, …)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from paceline.telemetry.pulse import Pulse

STEP_PHASES = ("data", "forward", "backward", "optimizer", "step")
_MIN_STEPS = 3
_BURN_IN = 4
"""blocks from which the noise is learned at first"""
_LAG = 10
"""blocks: the newest ones may be the beginning of something, and are no part of the slow noise"""
_KEPT = 80
_EVERY = 5
"""blocks after which the slow noise is measured again"""
_SIGMA = 1.4826
"""median of absolute deviations -> standard deviation"""
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Block:
    """A few steps of all ranks."""

    steps: int
    last_step: int
    step_ms: float
    excess: Mapping[int, float]
    """rank -> share of a step that it is slower than the others"""
    lost_ms: Mapping[int, Mapping[str, float]]
    """rank -> phase -> ms per step more than the median of the others"""
    waits_ms: Mapping[int, float]
    """per step; empty: nobody tells how long it waits"""


def has_block(begun: Pulse, now: Pulse) -> bool:
    """Whether a rank has come far enough for a comparison."""
    return now.step - begun.step >= _MIN_STEPS and (now.waits > begun.waits or now.waits == 0)


def compare(begun: Mapping[int, Pulse], now: Mapping[int, Pulse]) -> Block | None:
    """One block of the same ranks; None where they tell nothing of their times."""
    spent = {rank: _spent_ms(begun[rank], pulse) for rank, pulse in now.items()}
    step_ms = median(sum(phases.values()) for phases in spent.values())
    if step_ms <= 0:
        return None
    waits = {rank: _wait_ms(begun[rank], pulse) for rank, pulse in now.items()}
    known = {rank: wait for rank, wait in waits.items() if wait is not None}
    if len(known) == len(now):
        late = {rank: -wait for rank, wait in known.items()}
    else:
        # Nobody tells how long it waits (sharded models do not): only the time for its data is surely a rank's own.
        known, late = {}, {rank: phases["data"] for rank, phases in spent.items()}
    excess = {}
    for rank, more_ms in _above_others(late).items():
        excess[rank] = more_ms / max(step_ms - max(more_ms, 0.0), step_ms / 10)
    # Backward ends with the wait for the others.
    own = {rank: phases | {"backward": phases["backward"] - known.get(rank, 0.0)} for rank, phases in spent.items()}
    lost = {phase: _above_others({rank: own[rank][phase] for rank in now}) for phase in STEP_PHASES}
    return Block(
        min(pulse.step - begun[rank].step for rank, pulse in now.items()),
        min(pulse.step for pulse in now.values()),
        step_ms,
        excess,
        {rank: {phase: lost[phase][rank] for phase in STEP_PHASES} for rank in now},
        known,
    )


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
            before = self._blocks[-1]
            self._changes.append(median(abs(block.excess[rank] - before.excess[rank]) for rank in block.excess))
        self._blocks.append(block)
        self._added += 1
        if len(self._blocks) < _BURN_IN:
            return
        if self._added % _EVERY == 0 and len(self._blocks) >= 2 * _LAG:
            self._slow = self._measure_slow()
        self.size = max(_SIGMA * median(self._changes) / 2**0.5, self._slow)

    def _measure_slow(self) -> float:
        old = list(self._blocks)[:-_LAG]
        deviations = []
        for rank in old[-1].excess:
            values = [block.excess[rank] for block in old]
            level = median(values)
            deviations += [abs(value - level) for value in values]
        return _SIGMA * median(deviations)


def _spent_ms(begun: Pulse, now: Pulse) -> dict[str, float]:
    """Per step, in each phase of a step."""
    steps = now.step - begun.step
    return {
        phase: 1000 * (now.spent_s.get(phase, 0.0) - begun.spent_s.get(phase, 0.0)) / steps for phase in STEP_PHASES
    }


def _wait_ms(begun: Pulse, now: Pulse) -> float | None:
    waits = now.waits - begun.waits
    return (now.waited_ms - begun.waited_ms) / waits if waits > 0 else None


def _above_others(values: Mapping[_Key, float]) -> dict[_Key, float]:
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
