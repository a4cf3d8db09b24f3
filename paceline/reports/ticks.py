"""Ticks of an axis: round numbers inside a range, and the shortest labels that tell them apart.

round_ticks(0, 23.7, 5)          -> [0, 5, 10, 15, 20]
tick_labels([0, 20000, 40000])   -> ["0", "20k", "40k"]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def round_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """At most `most` multiples of 1, 2 or 5 times a power of ten between two numbers; `whole` leaves out fractions."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    exponent = math.floor(math.log10(span / most))
    for power in range(exponent, exponent + 3):
        for factor in (1, 2, 5):
            width = factor * 10.0**power
            if whole and width < 1:
                continue
            first, last = math.ceil(low / width - 1e-9), math.floor(high / width + 1e-9)
            if last - first + 1 <= most:
                # Divided where one can: 3 * 0.1 is not 0.3.
                return [
                    index * width if power >= 0 else index * factor / 10**-power for index in range(first, last + 1)
                ]
    return [low]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` powers of ten between two positive numbers; 2 and 5 times them where there is room."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) <= most:
            return inside
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    return [10.0**power for power in powers[:: math.ceil(len(powers) / most)]]


def tick_labels(ticks: Sequence[float], *, is_log: bool = False) -> list[str]:
    """One label per tick; on a logarithmic axis each is as exact as itself needs, elsewhere all have the same decimals."""
    if is_log:
        return [_short(tick) for tick in ticks]
    most = max((abs(tick) for tick in ticks), default=0.0)
    width = min((after - before for before, after in pairwise(ticks)), default=most)
    if most == 0:
        return ["0" for _ in ticks]
    if most >= 1e15 or most < 1e-3:
        decimals = max(0, _exponent(most) - _exponent(width)) if width > 0 else 1
        return [f"{tick:.{decimals}e}".replace("e-0", "e-").replace("e+0", "e+") if tick else "0" for tick in ticks]
    size, unit = next(((size, unit) for size, unit in _UNITS if most >= 10 * size or width >= size), (1.0, ""))
    decimals = min(9, max(0, -_exponent(width / size))) if width > 0 else 2
    return [f"{tick / size:.{decimals}f}{unit}" if tick else "0" for tick in ticks]


def _exponent(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)


def _short(value: float) -> str:
    if 1e-3 <= value < 1e4:
        return f"{value:.10g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
