"""How far numbers lie apart, by a measure that a few wild ones do not move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

_SIGMA = 1.4826
"""median of absolute deviations -> standard deviation"""


def measure_spread(values: Sequence[float]) -> float:
    """As a standard deviation, around their median."""
    middle = median(values)
    return from_deviations(value - middle for value in values)


def from_deviations(deviations: Iterable[float]) -> float:
    """The same, of how far each lies from a middle of its own."""
    return _SIGMA * median(map(abs, deviations))
