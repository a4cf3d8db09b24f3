"""A machine that drifts, as trials saw it in time: one fit of all cases in which neighbours in time are alike.

log(value) = case + drift(time) + noise. The drift is an Ornstein-Uhlenbeck process: two trials share it the more, the closer they ran.
Its share of a trial's variance and the time in which it forgets itself are chosen by restricted likelihood, on a small grid. Rounds
(comparison.py) take out what a round has in common; this takes out what neighbours have, which is more: a round of 36 trials is
longer than most moods of a machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.sweep.observation import Observation

if TYPE_CHECKING:
    import numpy as np

_SHARES = (0.0, 0.3, 0.6, 0.8, 0.9, 0.97)
"""of a trial's variance that are drift"""
_TIMES = (0.7, 1.5, 3.0, 6.0, 12.0, 40.0)
"""in which the drift forgets itself, in steps from trial to trial"""
_SITTING_SPREAD = 0.05
"""by how much the machine may have changed in a pause, and short trials differ from whole ones"""
_RIDGE = 1e-9
_CUT = 3.0
_ITERATIONS, _ESTIMATES = 8, 3
_ENOUGH = 200
"""trials that know a drift well; the likelihood's price grows with the third power of their number"""
_PAUSE = 100.0
"""steps without a trial, after which the machine may be another one: somebody stopped the sweep and went on later"""
LEAST_FREEDOM = 5
"""of whole trials: fewer do not know a drift from noise"""
_PRIOR_NOISE, _PRIOR_FREEDOM = 0.02, 0.5


@dataclass(frozen=True)
class Fit:
    """What cases come to when the drift is taken out."""

    effects: np.ndarray
    covariance: np.ndarray
    noise: float
    freedom: float
    struck: np.ndarray
    """for each trial, how far below its case it lies, as a log, if that is no noise; else 0"""
    steadied: np.ndarray
    """the values without the drift at their time"""


def fit_drift(observations: Sequence[Observation], places: dict[str, int], start: np.ndarray) -> Fit | None:
    """None: too few whole trials. `start`: for each trial, how far it lies from a first guess, and so whether it was struck."""
    import numpy as np

    doubts = np.array([o.doubt for o in observations])
    values = np.array([o.value for o in observations])
    level = values.mean()
    values = values - level
    times = np.array([o.time_s or 0.0 for o in observations])
    whole = doubts == 0
    # Of trials side by side most are no step apart, and a pause is no step: neither is a median's or a mean's business.
    step = float(np.quantile(np.diff(np.sort(times)), 0.9)) if len(times) > 1 else 0.0
    if _freedom(observations, whole) < LEAST_FREEDOM or step <= 0:
        return None
    design = _design(observations, places, times, step)
    # Of the columns that are no cases nothing is known but that they are small: a case that ran only in a sitting of its own has
    # an error that says so.
    prior = np.where(np.arange(design.shape[1]) < len(places), 0.0, _SITTING_SPREAD**-2)
    gaps = np.abs(times[:, None] - times[None, :])
    spread = np.full(len(values), _PRIOR_NOISE**2) + doubts
    struck = np.where(start < -_CUT * np.sqrt(spread), -start, 0.0)
    extra = np.where(struck > 0, spread * ((struck / (_CUT * np.sqrt(spread))) ** 2 - 1), 0.0)
    known: tuple[float, float, float, float] | None = None
    for turn in range(_ITERATIONS):
        judged = whole & (struck == 0)
        if _freedom(observations, judged) < LEAST_FREEDOM:
            judged = whole
        if turn < _ESTIMATES or known is None:
            known = _likeliest(values, design, gaps, _latest(times, judged), step)
        noise, share, memory, freedom = known
        kernel = noise**2 * share * np.exp(-gaps / memory)
        own = noise**2 * (1 - share) + doubts
        inverse = np.linalg.inv(kernel + np.diag(own + extra))
        weighted = inverse @ design
        covariance = np.linalg.inv(design.T @ weighted + np.diag(prior))
        solution = covariance @ (weighted.T @ values)
        reduced = inverse @ (values - design @ solution)
        leverage = np.diag(inverse) - np.einsum("ij,jk,ik->i", weighted, covariance, weighted)
        # How far each lies from what all others say of it; a case's only trial is what the case is.
        is_known = leverage > 1e-6 * np.diag(inverse)
        apart = np.where(is_known, reduced / np.where(is_known, leverage, 1.0), 0.0)
        spread = np.where(is_known, 1 / np.where(is_known, leverage, 1.0) - extra, 1.0)
        bounds = _CUT * np.sqrt(np.maximum(spread, own))
        before, struck = struck > 0, np.where(apart < -bounds, -apart, 0.0)
        # The further out, the less it has to say: its pull falls as 1/distance.
        extra = np.where(struck > 0, spread * ((struck / bounds) ** 2 - 1), 0.0)
        if turn and bool((before == (struck > 0)).all()):
            break
    count = len(places)
    drift = kernel @ reduced + design[:, count:] @ solution[count:]
    return Fit(level + solution[:count], covariance[:count, :count], noise, freedom, struck, level + values - drift)


def _design(observations: Sequence[Observation], places: dict[str, int], times: np.ndarray, step: float) -> np.ndarray:
    """A column for each case; one for what short trials have in common against whole ones; one for each sitting after the first."""
    import numpy as np

    columns = [[places[o.case] == place for o in observations] for place in range(len(places))]
    is_short = [o.doubt > 0 for o in observations]
    if any(is_short) and not all(is_short):
        columns.append(is_short)
    order = np.argsort(times, kind="stable")
    sittings = np.zeros(len(times), dtype=int)
    sittings[order[1:]] = np.cumsum(np.diff(times[order]) > _PAUSE * step)
    columns += [(sittings == number).tolist() for number in range(1, int(sittings.max()) + 1)]
    return np.array(columns, dtype=float).T


def _freedom(observations: Sequence[Observation], chosen: np.ndarray) -> int:
    cases = {o.case for o, is_in in zip(observations, chosen, strict=True) if is_in}
    return int(chosen.sum()) - len(cases)


def _latest(times: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """The places of so many trials as are enough to know a drift by: neighbours, and the newest."""
    import numpy as np

    places = np.flatnonzero(judged)
    return places[np.argsort(times[places], kind="stable")[-_ENOUGH:]]


def _likeliest(
    values: np.ndarray, design: np.ndarray, gaps: np.ndarray, chosen: np.ndarray, step: float
) -> tuple[float, float, float, float]:
    """Noise, the drift's share of it, its time, and the degrees of freedom, by restricted likelihood."""
    import numpy as np

    values, design, gaps = values[chosen], design[chosen], gaps[np.ix_(chosen, chosen)]
    design = design[:, design.any(axis=0)]
    free = len(values) - int(np.linalg.matrix_rank(design))
    best = (-math.inf, 0.0, 0.0, 0.0)
    for share in _SHARES:
        for memory in _TIMES if share else _TIMES[:1]:
            shape = share * np.exp(-gaps / (memory * step)) + (1 - share) * np.eye(len(values))
            root = np.linalg.cholesky(shape)
            both = np.linalg.solve(root, np.column_stack([design, values]))
            left, right = both[:, :-1], both[:, -1]
            normal = left.T @ left + _RIDGE * np.eye(left.shape[1])
            squares = float(right @ right - (left.T @ right) @ np.linalg.solve(normal, left.T @ right))
            variance = (max(squares, 0.0) + _PRIOR_FREEDOM * _PRIOR_NOISE**2) / (free + _PRIOR_FREEDOM)
            likelihood = -0.5 * (
                (free + _PRIOR_FREEDOM) * math.log(variance)
                + 2 * float(np.log(np.diag(root)).sum())
                + float(np.linalg.slogdet(normal)[1])
            )
            if likelihood > best[0]:
                best = likelihood, math.sqrt(variance), share, memory * step
    return best[1], best[2], best[3], free - 1 + _PRIOR_FREEDOM
