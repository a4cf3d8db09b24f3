"""Whether a series stands still: the slope of its second part by Theil and Sen, with the interval of the slope.

    find_trend(steps, memory)     -> Trend(change=0.0002, low=0.0, high=0.001, …)     shares of its level, over the whole part

The median of all slopes between two points does not care for a few rows that somebody else disturbed. The interval is Sen's, at 95 %; it
takes rows for independent of each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import theilslopes

LEAST = 8
"""points; with fewer an interval means nothing"""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Trend:
    """How much the series changed over its second part, as a share of its median there."""

    change: float
    low: float
    high: float
    first: float
    last: float
    num_points: int

    @property
    def shown(self) -> str:
        return f"{self.change:+.2%} ({self.low:+.2%} to {self.high:+.2%})"

    @property
    def window(self) -> str:
        return f"steps {self.first:,.0f} to {self.last:,.0f} ({self.num_points} rows), Theil-Sen slope, {CONFIDENCE:.0%} interval"


def find_trend(steps: Sequence[float], values: Sequence[float]) -> Trend | None:
    """None where the second part has too few points, or no level."""
    half = len(steps) // 2
    x, y = list(steps[half:]), list(values[half:])
    if len(x) < LEAST:
        return None
    level = statistics.median(y)
    if level <= 0:
        return None
    slope, _, low, high = theilslopes(y, x, alpha=CONFIDENCE)
    over = (x[-1] - x[0]) / level
    return Trend(float(slope) * over, float(low) * over, float(high) * over, x[0], x[-1], len(x))
