"""A curve of any length as the points that a screen can show: the least and the greatest value of each column of pixels.

    thin([1, 2, …, 100000], losses, columns=360).pieces     -> [[(1, 6.2), (212, 4.9), …], …]

A spike of a single row stays a spike. A value that is not known ends a piece; one that is not finite is told apart.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

Point = tuple[float, float]
_LARGEST = 1e250
"""beyond it a range of values is no longer a number; nan is not below it"""


@dataclass(frozen=True)
class Thinned:
    """What is drawn of a curve."""

    pieces: list[list[Point]]
    """unbroken lines, in order"""
    means: list[list[Point]]
    """the mean of each column, where columns hold more than a point; else nothing"""
    lost: list[float]
    """where a value was not finite: one place per column at most"""

    @property
    def points(self) -> list[Point]:
        return [point for piece in self.pieces for point in piece]


def thin(x: Sequence[float], y: Sequence[float | None], columns: int) -> Thinned:
    """Of a curve whose x never falls: at most two points per column, and all of them where there are few."""
    pieces: list[list[Point]] = []
    means: list[list[Point]] = []
    lost: list[float] = []
    is_open = False
    for column in split_columns(x, columns):
        known = [(value, index) for index in column if (value := y[index]) is not None]
        finite = [pair for pair in known if abs(pair[0]) < _LARGEST]
        if len(finite) < len(known):
            lost.append(next(x[index] for value, index in known if not abs(value) < _LARGEST))
        if not finite:
            is_open = False
            continue
        if not is_open:
            pieces.append([])
            means.append([])
            is_open = True
        pieces[-1] += [(x[index], value) for value, index in sorted({min(finite), max(finite)}, key=itemgetter(1))]
        means[-1].append((x[column[len(column) // 2]], math.fsum(value for value, _ in finite) / len(finite)))
    return Thinned(pieces, means if len(x) > 2 * columns else [], lost)


def split_columns(x: Sequence[float], columns: int) -> list[range]:
    """The indices that fall into each column of pixels; one by one where two points per column suffice for all."""
    if len(x) <= 2 * columns:
        return [range(index, index + 1) for index in range(len(x))]
    low, span = x[0], x[-1] - x[0]
    if span <= 0:
        return [range(len(x))]
    borders = [bisect_left(x, low + span * column / columns) for column in range(columns)]
    pairs = pairwise([*borders, len(x)])
    return [range(begin, end) for begin, end in pairs if begin < end]


def mean_of(y: Sequence[float | None], column: range) -> float | None:
    """The mean of the known, finite values of a column; None where there are none."""
    values = [value for index in column if (value := y[index]) is not None and abs(value) < _LARGEST]
    return math.fsum(values) / len(values) if values else None
