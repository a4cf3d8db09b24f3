"""Whether one of several ranks stands out, block after block: a test that may be looked at all the time.

A block speaks against a rank if its excess over the others is over 4 % of a step, and the louder the more it is above the run's own noise.
In a clean run loud blocks are rare; of a straggler nearly all are loud. The evidence is the likelihood ratio of the two, summed over every
block at which the trouble may have begun, with weights that add up to one: such a sum exceeds 1/a with a probability of at most a, however
long the run is looked at (Ville's inequality), as far as blocks are independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.diagnose.noise import Noise

LEAST_EXCESS = 0.04
"""of a step: whoever loses less than that is no straggler"""
_LEVELS = (1.0, 2.0, 3.0)
"""how loudly a block speaks against a rank: its excess in units of the noise"""
_P_CLEAN = (0.18, 0.05, 0.02)
_P_STRAGGLER = (0.92, 0.72, 0.42)
"""how often at least so much happens: in a clean run (or as often as it does to the other ranks of this run), and to a straggler"""
_LEAST_STEPS = 25
_NOISY_STEPS, _NOISIEST = 200, 0.25
"""steps that have to speak against a rank, and how many more for a noise of the size of a step: who is slow once is no straggler, and on
a loaded machine everybody is, now and then, for a while"""
_CAP = 50.0
"""times the threshold: a rank that has recovered is forgiven after a few blocks"""


@dataclass
class _Suspect:
    """What speaks against one rank."""

    evidence: float = 0.0
    """likelihood ratio, summed over the blocks at which it may have begun"""
    blocks: int = 0
    steps: int = 0
    """since the evidence was last in its favour"""
    reached: list[int] = field(default_factory=lambda: [0] * len(_LEVELS))
    """blocks that reached each level"""

    def add(self, bet: tuple[float, float, float], steps: int) -> None:
        ratio, weight, most = bet
        self.evidence = min(most, (self.evidence + weight) * ratio)
        is_doubtful = self.evidence > weight
        self.blocks = self.blocks + 1 if is_doubtful else 0
        self.steps = self.steps + steps if is_doubtful else 0


class Suspicion:
    """Of the same ranks, by one measure."""

    def __init__(self, ranks: Iterable[int], error: float) -> None:
        """`error`: the most of all clean runs in which anybody is accused."""
        self._suspects = {rank: _Suspect() for rank in ranks}
        self._noise = Noise()
        self._num_blocks = 0
        self._reached = [0] * len(_LEVELS)
        self._threshold = max(1, len(self._suspects)) / error

    def add(self, excess: Mapping[int, float], steps: int) -> None:
        """One block of so many steps: by which share of a step each rank was slower than the others."""
        noise = self._noise.size
        self._noise.add(excess)
        if noise is None:
            return
        self._num_blocks += 1
        weight = weigh_beginning(self._num_blocks)
        levels = {rank: _grade(each, noise) for rank, each in excess.items()}
        ratios: dict[tuple[int, ...], float] = {}
        """by level and by what the rank has reached: of many ranks most have the same"""
        for rank, level in levels.items():
            suspect = self._suspects[rank]
            key = (level, *suspect.reached)
            if key not in ratios:
                ratios[key] = _likelihood_ratio(level, self._clean_rates(suspect.reached))
            suspect.add((ratios[key], weight, _CAP * self._threshold), steps)
        for rank, level in levels.items():
            for reached in range(level):
                self._suspects[rank].reached[reached] += 1
                self._reached[reached] += 1

    @property
    def accused(self) -> list[int]:
        least_steps = _LEAST_STEPS + _NOISY_STEPS * min(self._noise.size or 0.0, _NOISIEST)
        return [
            rank
            for rank, suspect in self._suspects.items()
            if suspect.evidence >= self._threshold and suspect.steps >= least_steps
        ]

    def blocks_of_doubt(self, rank: int) -> int:
        """Since when it has been suspected."""
        return self._suspects[rank].blocks

    def _clean_rates(self, own: Sequence[int]) -> list[float]:
        """How often at least each level comes about without a straggler: as assumed, or as seen of the other ranks of this run. `own`: how
        often the rank itself has reached each."""
        num = self._num_blocks * (len(self._suspects) - 1)
        rates = list[float]()
        for level, assumed in enumerate(_P_CLEAN):
            seen = (self._reached[level] - own[level]) / num
            rates.append(min(max(assumed, seen), rates[-1] * 0.7 if rates else 0.5))
        return rates


def weigh_beginning(number: int) -> float:
    """How likely trouble is to begin at the n-th block, before anything is known: they add up to one."""
    return 1 / (number * (number + 1))


def _grade(excess: float, noise: float) -> int:
    """0: nothing; else the highest level that it reaches."""
    return sum(excess > level * noise for level in _LEVELS) if excess > LEAST_EXCESS else 0


def _likelihood_ratio(level: int, clean: Sequence[float]) -> float:
    """How much likelier a block of this level is with a straggler than without."""
    return _share(level, _P_STRAGGLER) / _share(level, clean)


def _share(level: int, tails: Sequence[float]) -> float:
    return ([1.0, *tails][level]) - ([*tails, 0.0][level])
