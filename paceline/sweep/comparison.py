"""What trials say about differences between cases: one fit over all rounds, with its noise and its intervals.

log(value) = case + round + noise. Cases are compared within rounds, so what the machine did to a whole round does not count, and the
noise is pooled over all cases, so two rounds of thirty cases already know it with thirty degrees of freedom, where a pair of
cases would know it with one. Two things are made safe:
- A trial that is slow by accident (another process, a throttled clock) would drag its case down, and its noise would hide what
  the others say. Residuals on the slow side beyond 3 deviations are weighed less, the further the less; only on that side,
  because accidents never make a trial faster. Of two trials that disagree that much, the faster one is believed.
  That holds for paces alone: a low validation metric is no accident of the machine but what the case does, and counts in full.
- Rounds that share no case are tied together only by a prior: the machine may have changed by 5 % in between.
Nothing here looks at windows: they are not independent, the trial is the unit of evidence.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.sweep.drift import fit_drift
from paceline.sweep.observation import Observation

if TYPE_CHECKING:
    import numpy as np

PRIOR_NOISE = 0.02
PRIOR_FREEDOM = 0.5
"""what is thought of a trial's noise before any case has run twice, and for how many degrees of freedom it counts"""
_ROUND_SPREAD = 0.05
_ENOUGH = 3
_FARTHEST = 20.0
"""no interval of logs is wider: with a single round, nothing is known, and e²⁰ says so as well as any number"""
_CUT = 3.0
_ITERATIONS = 12


@dataclass(frozen=True)
class Comparison:
    """Cases beside each other."""

    effects: dict[str, float]
    """log of each case's value in an average round"""
    noise: float
    """standard deviation of one trial within its round, relative"""
    freedom: float
    trials: dict[str, int]
    _places: dict[str, int]
    _covariance: np.ndarray
    is_pure: bool = False
    """the noise is that of whole trials alone"""
    steadied: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """of each case's trials: the value without what the machine did to its time, and its deviation"""
    struck: tuple[float, ...] = ()
    """how far below their cases those trials lay that were no noise"""

    def difference(self, case: str, other: str) -> tuple[float, float]:
        """How much better, as a difference of logs, with its standard error."""
        i, j = self._places[case], self._places[other]
        cov = self._covariance
        variance = cov[i, i] + cov[j, j] - 2 * cov[i, j]
        return self.effects[case] - self.effects[other], math.sqrt(max(float(variance), 0.0))

    def covariance(self, cases: Sequence[str]) -> np.ndarray:
        """Of the effects' errors, in this order."""
        import numpy as np

        places = [self._places[case] for case in cases]
        return self._covariance[np.ix_(places, places)]

    def error_of(self, case: str) -> float:
        return math.sqrt(float(self._covariance[self._places[case], self._places[case]]))

    def noise_below(self, confidence: float) -> float:
        """What the noise is at most, with this confidence: the fewer trials, the larger."""
        from scipy.special import chdtri

        return self.noise * math.sqrt(self.freedom / float(chdtri(self.freedom, confidence)))

    def reach(self, error: float) -> float:
        """How many standard errors hold a difference on one side, but for this chance of error."""
        from scipy.special import stdtrit

        return min(float(stdtrit(self.freedom, 1 - error)), _FARTHEST / max(self.noise, 1e-9))


def compare(observations: Sequence[Observation], *, are_paces: bool = True) -> Comparison | None:
    """None: nothing to compare; `are_paces`: what is far below the others may be an accident."""
    if not observations:
        return None
    import numpy as np

    cases = sorted({o.case for o in observations})
    rounds = sorted({o.round for o in observations})
    places = {case: index for index, case in enumerate(cases)}
    values = np.array([o.value for o in observations])
    design = np.zeros((len(observations), len(cases) + len(rounds)))
    for row, observation in enumerate(observations):
        design[row, places[observation.case]] = 1.0
        design[row, len(cases) + rounds.index(observation.round)] = 1.0
    is_round = np.arange(design.shape[1]) >= len(cases)
    # Rounds are deviations from their mean, so that a case's effect is its level.
    level = values.mean()
    doubts = np.array([o.doubt for o in observations])
    judged, lost = _judged(observations)
    noise = _rough_noise(observations)
    start = np.array(_upper_levels(observations, places)) - level
    residuals = values - level - start
    counts = Counter(o.case for o in observations)
    if are_paces and all(o.time_s is not None for o in observations):
        drift = fit_drift(observations, places, residuals)
        if drift is not None:
            effects = {case: float(drift.effects[index]) for case, index in places.items()}
            steadied = _by_case(observations, drift.steadied, drift.noise)
            struck = tuple(float(size) for size in drift.struck if size > 0)
            return Comparison(
                effects, drift.noise, drift.freedom, dict(counts), places, drift.covariance, True, steadied, struck
            )
    weights = np.ones(len(values))
    solution = np.zeros(design.shape[1])
    for _ in range(_ITERATIONS):
        bounds = _CUT * np.sqrt(noise**2 + doubts)
        # A trial far out has no say at all: with weights that fall as 1/r² its pull falls as 1/r.
        is_accident = (residuals < -bounds) & are_paces
        heavy = np.where(is_accident, (bounds / np.maximum(-residuals, 1e-12)) ** 2, 1.0)
        weights = heavy * noise**2 / (noise**2 + doubts)
        inverse = np.linalg.inv(
            design.T @ (design * weights[:, None]) + np.diag(is_round * (noise / _ROUND_SPREAD) ** 2)
        )
        solution = inverse @ (design.T @ (weights * (values - level)))
        residuals = values - level - design @ solution
        # What has no say tells nothing of the noise, either; but never are all of them accidents.
        free = max(float(heavy[judged].sum()) - lost, (int(judged.sum()) - lost) / 2, 0.0)
        squares = float((weights * heavy)[judged] @ residuals[judged] ** 2) if free else 0.0
        found = math.sqrt((squares + PRIOR_FREEDOM * PRIOR_NOISE**2) / (free + PRIOR_FREEDOM))
        is_settled = abs(found - noise) < 1e-5
        noise = found
        if is_settled:
            break
    covariance = noise**2 * inverse
    effects = {case: float(level + solution[index]) for case, index in places.items()}
    steadied = _by_case(observations, values - design[:, len(cases) :] @ solution[len(cases) :], noise)
    struck = tuple(float(-r) for r, is_in in zip(residuals, heavy < 1, strict=True) if is_in)
    is_pure = not bool(doubts[judged].any())
    return Comparison(effects, noise, free + PRIOR_FREEDOM, dict(counts), places, covariance, is_pure, steadied, struck)


def _by_case(
    observations: Sequence[Observation], values: np.ndarray, noise: float
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for observation, value in zip(observations, values.tolist(), strict=True):
        found.setdefault(observation.case, []).append((value, math.sqrt(noise**2 + observation.doubt)))
    return found


def _judged(observations: Sequence[Observation]) -> tuple[np.ndarray, int]:
    """From which trials the noise is known, and how many of them the cases and rounds use up: whole ones, if enough ran twice."""
    import numpy as np

    whole = np.array([o.doubt == 0 for o in observations])
    for mask in (whole, np.ones(len(observations), dtype=bool)):
        chosen = [o for o, is_in in zip(observations, mask, strict=True) if is_in]
        # One round has no deviations, and the constant belongs to the cases.
        lost = len({o.case for o in chosen}) + len({o.round for o in chosen}) - 1
        if len(chosen) - lost >= _ENOUGH:
            break
    return mask, lost


def _upper_levels(observations: Sequence[Observation], places: Mapping[str, int]) -> list[float]:
    """Where each observation would lie if its case had no accidents: the upper median of the case, in the middle of its round."""
    by_case: dict[str, list[Observation]] = {case: [] for case in places}
    by_round: dict[int, list[Observation]] = {}
    for observation in observations:
        by_case[observation.case].append(observation)
        by_round.setdefault(observation.round, []).append(observation)
    rounds = dict.fromkeys(by_round, 0.0)
    levels = dict.fromkeys(by_case, 0.0)
    for _ in range(3):
        for case, own in by_case.items():
            levels[case] = sorted(o.value - rounds[o.round] for o in own)[len(own) // 2]
        for number, there in by_round.items():
            rounds[number] = statistics.median(o.value - levels[o.case] for o in there)
    return [levels[o.case] + rounds[o.round] for o in observations]


def _rough_noise(observations: Sequence[Observation]) -> float:
    """From the median step between two trials of one case, which a few accidents do not move."""
    rounds = {number: [o for o in observations if o.round == number] for number in {o.round for o in observations}}
    steps = []
    last: dict[str, float] = {}
    for number in sorted(rounds):
        both = [o.value - last[o.case] for o in rounds[number] if o.case in last]
        middle = statistics.median(both) if both else 0.0
        steps += [abs(value - middle) for value in both]
        last |= {o.case: o.value for o in rounds[number]}
    # Half of all differences of two normal numbers are smaller than 0.954 deviations of one.
    return max(statistics.median(steps) / 0.954, PRIOR_NOISE / 4) if len(steps) >= 3 else PRIOR_NOISE
