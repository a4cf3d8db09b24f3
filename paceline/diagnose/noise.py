"""The noise of a run: how much the excess of a rank over the others changes from block to block, as far as it is nobody's fault."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import sub
from statistics import median

from paceline.diagnose.spread import from_deviations

_BURN_IN = 4
"""blocks from which the noise is learned at first"""
_LAG = 10
"""blocks: the newest ones may be the beginning of something, and are no part of the slow noise"""
_KEPT = 80
_EVERY = 5
"""blocks after which the slow noise is measured again"""
_EIGHTIETH = 1.2816
"""the 80th percentile of absolute deviations, in standard deviations: it sees heavy tails, and still no single pause"""
_NOISIEST = 0.5
_CAUTION = 3.0
"""a spread that is known from n changes may be larger by this much / n"""


class Noise:
    """The spread of one block's excess, as far as it is nobody's fault."""

    def __init__(self) -> None:
        self.size: float | None = None
        """None: not known yet"""
        self._blocks: deque[list[float]] = deque(maxlen=_KEPT)
        self._changes: deque[float] = deque(maxlen=_KEPT)
        self._slow = 0.0
        self._added = 0

    def add(self, excess: Mapping[int, float]) -> None:
        """Of the same ranks in the same order, each time. From what changes between two blocks, to which a rank that is always slow adds nothing; and from how each rank wandered about
        its own level, which is more where other programs come and go."""
        # What is beyond half a step is no noise, and how much it is does not matter.
        block = [max(-_NOISIEST, min(_NOISIEST, each)) for each in excess.values()]
        if self._blocks:
            self._changes.append(median(map(abs, map(sub, block, self._blocks[-1]))))
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
        deviations: list[float] = []
        for values in zip(*list(self._blocks)[:-_LAG], strict=True):
            level = median(values)
            deviations += [value - level for value in values]
        return from_deviations(deviations)
