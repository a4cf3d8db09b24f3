"""The scale on which cases are compared: numbers of which larger is better, and whose differences are relative.

Logarithms, as long as every value is positive: a difference is a ratio then. A metric that is zero or negative somewhere (a
log-likelihood, a correlation) has no logarithm; its differences are shares of the usual size of the values instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """From values to places on it, and back."""

    sign: float = 1.0
    """-1: the smaller value is the better one"""
    unit: float | None = None
    """what a difference of one is, in the metric; None: logarithms"""

    def place(self, value: float) -> float:
        return self.sign * (math.log(value) if self.unit is None else value / self.unit)

    def value(self, place: float) -> float:
        return math.exp(self.sign * place) if self.unit is None else self.sign * place * self.unit

    def ratio(self, difference: float) -> float:
        """Against the other: 0.97 is 3 % worse."""
        return math.exp(difference) if self.unit is None else 1 + difference

    def distance(self, share: float) -> float:
        """Of two places of which one is better by this share."""
        return math.log1p(share) if self.unit is None else share


def choose_scale(values: Sequence[float], is_lower_better: bool) -> Scale:
    sign = -1.0 if is_lower_better else 1.0
    if all(value > 0 for value in values):
        return Scale(sign)
    return Scale(sign, statistics.median(abs(value) for value in values) or 1.0)
