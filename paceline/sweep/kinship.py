"""What cases that share values of an axis say about each other: who is worth running, never who is slower.

effect = level + a part for each value of each axis + a part of its own. How much of the spread between cases is shared and how much is a
case's own is chosen by likelihood, so where axes say little, or there are none, each case stands for itself. A case that is far below
its kin, in so few trials that they may be accidents, is thought of as its kin are.
    hopes_of(comparison, values, suspects={"bucket_mb=25 num_workers=0"})     -> {case: Hope(effect, error)}
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.sweep.comparison import Comparison

if TYPE_CHECKING:
    import numpy as np

_SHARED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
_OWN = (0.003, 0.01, 0.02, 0.05, 0.1, 0.2)
"""deviations between cases, as logs: by the values of one axis, and besides"""
_FEWEST = 4
"""cases, to say anything of their spread"""
_CUT = 2.5
_TURNS = 2


@dataclass(frozen=True)
class Hope:
    """What is thought of a case, with its standard error."""

    effect: float
    error: float


def hopes_of(
    comparison: Comparison, values: Mapping[str, Mapping[str, Any]], suspects: Collection[str] = ()
) -> dict[str, Hope]:
    """For every case that has numbers; `values`: of each case, by axis; `suspects`: whose trials may all be accidents."""
    import numpy as np

    cases = sorted(comparison.effects)
    level = sum(comparison.effects.values()) / len(cases)
    effects = np.array([comparison.effects[case] - level for case in cases])
    errors = comparison.covariance(cases)
    if len(cases) < _FEWEST:
        return {case: Hope(comparison.effects[case], comparison.error_of(case)) for case in cases}
    kin = _kin(cases, values)
    is_suspect = np.array([case in suspects for case in cases])
    extra = np.zeros(len(cases))
    for _ in range(_TURNS):
        shared, own = _likeliest(effects, errors + np.diag(extra), kin)
        spread = shared**2 * kin + own**2 * np.eye(len(cases))
        reduced, projected = _reduce(effects, spread + errors + np.diag(extra))
        apart, variance = reduced / np.diag(projected), 1 / np.diag(projected) - extra
        bound = _CUT * np.sqrt(variance)
        is_far = is_suspect & (apart < -bound)
        extra = np.where(is_far, variance * ((apart / bound) ** 2 - 1) + apart**2, 0.0)
    shared, own = _likeliest(effects, errors + np.diag(extra), kin)
    spread = shared**2 * kin + own**2 * np.eye(len(cases))
    noise = errors + np.diag(extra)
    reduced, projected = _reduce(effects, spread + noise)
    # What is left of each effect when its error is taken out, and how well that is known.
    found = level + effects - noise @ reduced
    left = np.diag(noise - noise @ projected @ noise)
    return {
        case: Hope(float(effect), math.sqrt(max(float(rest), 0.0)))
        for case, effect, rest in zip(cases, found, left, strict=True)
    }


def _kin(cases: list[str], values: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """How many values each two cases share; of axes that have several."""
    import numpy as np

    kin = np.zeros((len(cases), len(cases)))
    for axis in sorted({axis for case in cases for axis in values.get(case, {})}):
        column = [repr(values.get(case, {}).get(axis)) for case in cases]
        if 1 < len(set(column)) < len(cases):
            kin += np.array([[a == b for b in column] for a in column])
    return kin


def _reduce(effects: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The effects and their precision, when the level they have in common is taken out."""
    import numpy as np

    inverse = np.linalg.inv(variance)
    sums = inverse.sum(axis=1)
    projected = inverse - np.outer(sums, sums) / sums.sum()
    return projected @ effects, projected


def _likeliest(effects: np.ndarray, errors: np.ndarray, kin: np.ndarray) -> tuple[float, float]:
    """Deviations between cases: by the values of an axis, and of their own."""
    import numpy as np

    best = (-math.inf, 0.0, _OWN[-1])
    for shared in _SHARED if kin.any() else _SHARED[:1]:
        for own in _OWN:
            variance = shared**2 * kin + own**2 * np.eye(len(effects)) + errors
            inverse = np.linalg.inv(variance)
            sums = inverse.sum(axis=1)
            squares = effects @ inverse @ effects - (sums @ effects) ** 2 / sums.sum()
            likelihood = -0.5 * float(np.linalg.slogdet(variance)[1] + np.log(sums.sum()) + squares)
            if likelihood > best[0]:
                best = likelihood, shared, own
    return best[1], best[2]
