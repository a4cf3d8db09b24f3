"""An axis: from values to pixels, with ticks at round numbers that have room for their labels.

axis = build_y_axis([0.2, 18.4], start=196, end=26, from_zero=True)
axis.place(10), axis.ticks      -> 108.4, [(0, "0"), (5, "5"), …]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.reports.ticks import log_ticks, round_ticks, tick_labels

_FAR_APART = 20
"""a greatest value so many times the least asks for a logarithmic axis"""
_LEAST = 1e-250
"""below it there is no room for a margin"""
_MOST_Y_TICKS = 6
_GAP = 2.5
"""characters between two labels"""


@dataclass(frozen=True)
class Axis:
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    ticks: list[tuple[float, str]] = field(default_factory=list)

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def build_y_axis(
    values: Sequence[float], start: float, end: float, *, from_zero: bool = False, may_be_log: bool = False
) -> Axis:
    """An axis that holds all values; one without ticks where there is none."""
    if not values:
        return Axis(0.0, 1.0, start, end)
    low, high = min(values), max(values)
    if may_be_log and low > _LEAST and high / low > _FAR_APART:
        room = (high / low) ** 0.04
        low, high = low / room, high * room
        ticks = log_ticks(low, high, _MOST_Y_TICKS)
        return Axis(low, high, start, end, True, list(zip(ticks, tick_labels(ticks, is_log=True), strict=True)))
    if from_zero and low >= 0:
        low = 0.0
    if high - low <= 1e-9 * max(abs(high), abs(low)):  # a flat line lies in the middle
        room = abs(high) * 0.1 or 1.0
        low, high = low - room, high + room
    else:
        room = (high - low) * 0.05
        low, high = low - (room if low or not from_zero else 0.0), high + room
    ticks = round_ticks(low, high, _MOST_Y_TICKS)
    return Axis(low, high, start, end, False, list(zip(ticks, tick_labels(ticks), strict=True)))


def build_x_axis(
    values: tuple[float, float], start: float, end: float, character: float, *, whole: bool = True
) -> Axis:
    """An axis of whole numbers, or of any, with as many ticks as have room; `character` is the width of one."""
    low, high = values
    if high <= low:
        high = low + 1
    for most in (8, 7, 6, 5, 4, 3, 2):
        ticks = round_ticks(low, high, most, whole=whole)
        labels = tick_labels(ticks)
        axis = Axis(low, high, start, end, False, list(zip(ticks, labels, strict=True)))
        widest = max(len(label) for label in labels) + _GAP
        if len(ticks) < 2 or (ticks[1] - ticks[0]) / (high - low) * (end - start) >= widest * character:
            return axis
    return Axis(low, high, start, end, False, [(low, tick_labels([low])[0])])
