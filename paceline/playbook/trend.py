"""Whether a series stands still: the slope of its second part by Theil and Sen, with the interval of the slope.

    find_trend(steps, memory)     -> Trend(change=0.0002, low=0.0, high=0.001, …)     shares of its level, over the whole part

The median of all slopes between two points does not care for a few rows that somebody else disturbed. The interval is Sen's, by ranks, at
95 %; it takes rows for independent of each other.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.reports.amounts import counted

LEAST = 8
"""points; with fewer an interval means nothing"""
CONFIDENCE = 0.95
_MOST = 400
"""points: their pairs are counted in tens of thousands"""


@dataclass(frozen=True)
class Trend:
    """How much the series changed over its second part, as a share of its median there."""

    change: float
    low: float
    high: float
    first: float
    last: float
    num_points: int
    """rows of the second part"""
    num_used: int
    """of those; a long series is thinned"""

    @property
    def shown(self) -> str:
        return f"{self.change:+.2%} ({self.low:+.2%} to {self.high:+.2%})"

    @property
    def window(self) -> str:
        rows = counted(self.num_points, "row")
        if self.num_used < self.num_points:
            rows = f"{self.num_used:,} of {rows}, evenly spaced"
        return f"steps {self.first:,.0f} to {self.last:,.0f} ({rows}), Theil-Sen slope, {CONFIDENCE:.0%} interval"


def find_trend(steps: Sequence[float], values: Sequence[float]) -> Trend | None:
    """None where the second part has too few points, or no level."""
    half = len(steps) // 2
    x, y = steps[half:], values[half:]
    if len(x) < LEAST or statistics.median(y) <= 0:
        return None
    stride = math.ceil(len(x) / _MOST)
    used = x[::stride]
    slope, low, high = find_slope(used, y[::stride])
    over = (x[-1] - x[0]) / statistics.median(y)
    return Trend(slope * over, low * over, high * over, x[0], x[-1], len(x), len(used))


def say_lack(values: Sequence[float]) -> str:
    """Why a series has no trend."""
    num = len(values) - len(values) // 2
    if num < LEAST:
        return f"{counted(num, 'row')} in the second half of the run, and a slope needs {LEAST}"
    return "no level above 0 in the second half of the run"


def find_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """(slope, low, high); x is increasing."""
    points = list(zip(x, y, strict=True))
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2))
    num, pairs = len(points), len(slopes)
    # Kendall's variance: equal values tell nothing about a direction, and are taken out of it.
    tied = sum(each * (each - 1) * (2 * each + 5) for each in Counter(y).values())
    sigma = math.sqrt(max(0.0, (num * (num - 1) * (2 * num + 5) - tied) / 18))
    reach = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * sigma
    low = max(round((pairs - reach) / 2) - 1, 0)
    high = min(round((pairs + reach) / 2), pairs - 1)
    return statistics.median(slopes), slopes[low], slopes[high]
