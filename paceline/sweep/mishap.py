"""Is a case slow, or was it struck? How much better its trials are explained by a slower case than by accidents of the machine.

Accidents are not normal: on one recorded machine an eighth of all trials was slower by half, and of 36 equal cases one is struck twice
in every other sweep. So before a case is called slower, two stories of its trials are weighed: it is as fast as the leader and each
trial that lies below was struck, at the rate and by the sizes that this sweep has seen; or it is slower, by any amount. Trials that
agree speak for the second story (accidents of the same size are rare), trials that scatter do not, however slow. The ratio of the
likelihoods is a bet against the first story: whoever is as fast as the leader reaches N with a chance of about 1/N at most, however often one looks (the
leader's level, the noise and the rate of accidents are estimates).
    evidence_of_slowness([(-0.40, 0.02), (-0.41, 0.02)], Mishaps(rate=0.12, size=0.7))     -> 440, of 1,440 that 36 cases ask for
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.sweep.comparison import Comparison

if TYPE_CHECKING:
    import numpy as np

_USUAL = 0.1
"""how far slower cases are behind, in the middle; far more and far less is thought possible"""
_PRESUMED_RATE, _PRESUMED_TRIALS = 0.1, 10
_PRESUMED_SIZE = 0.3
"""of accidents, before any were seen"""


@dataclass(frozen=True)
class Mishaps:
    """How often trials of this sweep are struck, and how much slower they are then (the mean, as a log)."""

    rate: float
    size: float


def count_mishaps(comparison: Comparison) -> Mishaps:
    """Only where a case has other trials does one see that it was struck."""
    seen = sum(count for count in comparison.trials.values() if count > 1)
    struck = comparison.struck
    rate = (len(struck) + _PRESUMED_RATE * _PRESUMED_TRIALS) / (seen + _PRESUMED_TRIALS)
    return Mishaps(min(rate, 0.5), (sum(struck) + _PRESUMED_SIZE) / (len(struck) + 1))


def evidence_of_slowness(trials: Sequence[tuple[float, float]], mishaps: Mishaps) -> float:
    """Likelihood of a slower case over that of one that is as fast: of trials with their distance to the leader and its deviation."""
    import numpy as np

    values, deviations = (np.array(column) for column in zip(*trials, strict=True))
    # Where the likelihood has its peaks, and far around.
    near = (values[:, None] + deviations[:, None] * np.linspace(-4, 4, 33)[None, :]).ravel()
    far = -np.geomspace(1e-4, 10, 60)
    paces = np.unique(np.concatenate([near[near < 0], far]))
    believed = 1 / (_USUAL * (1 - paces / _USUAL) ** 2)
    logs = _log_likelihood(values, deviations, paces, mishaps)
    peak = max(float(logs.max()), -700.0)
    slower = float(np.trapezoid(np.exp(logs - peak) * believed, paces))
    equal = float(_log_likelihood(values, deviations, np.zeros(1), mishaps)[0]) - peak
    return float(np.exp(min(np.log(max(slower, 1e-300)) - equal, 700.0)))


def _log_likelihood(values: np.ndarray, deviations: np.ndarray, paces: np.ndarray, mishaps: Mishaps) -> np.ndarray:
    import numpy as np
    from scipy.special import log_ndtr

    apart = values[:, None] - paces[None, :]
    wide, size = deviations[:, None], mishaps.size
    clean = np.log1p(-mishaps.rate) - 0.5 * (apart / wide) ** 2 - np.log(wide * np.sqrt(2 * np.pi))
    # Noise plus an exponential loss.
    loss = apart / size + (wide / size) ** 2 / 2 + log_ndtr(-apart / wide - wide / size)
    total: np.ndarray = np.logaddexp(clean, np.log(mishaps.rate / size) + loss).sum(axis=0)
    return total
