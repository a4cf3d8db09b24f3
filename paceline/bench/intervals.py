"""A median with its confidence interval, by resampling: what a bench says about measurements that scatter."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A median and the bounds that hold it with 95 % confidence."""

    median: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """The same every time for the same values."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(_DRAWS))
    low, high = medians[round(0.025 * _DRAWS)], medians[round(0.975 * _DRAWS) - 1]
    return Interval(statistics.median(values), low, high)
