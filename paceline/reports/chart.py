"""A chart before it is drawn: what is shown over the steps, in which unit, and what is worth marking.

Chart("step time", "ms", [Series("p50", steps, medians), Series("p90", steps, slow)], from_zero=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from paceline.reports.thinning import Thinned, thin
from paceline.telemetry.numbers import is_finite

COLUMNS = 400
"""as many as the widest chart has pixels on a plain screen"""


@dataclass(frozen=True)
class Series:
    """One curve; None where nothing is known."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in self.y)

    @cached_property
    def thinned(self) -> Thinned:
        """What a screen can show of it; its least and its greatest value are among that."""
        return thin(self.x, self.y, COLUMNS)

    def first(self) -> float | None:
        """The first finite value."""
        return next((value for value in self.y if is_finite(value)), None)

    def last(self) -> float | None:
        return next((value for value in reversed(self.y) if is_finite(value)), None)


@dataclass(frozen=True)
class Mark:
    """A point worth pointing at, explained in the legend."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Curves over one x axis, in one unit."""

    title: str
    unit: str
    series: Sequence[Series]
    x_label: str = "step"
    x_range: tuple[float, float] | None = None
    """None: as far as the curves go"""
    from_zero: bool = False
    may_be_log: bool = False
    """logarithmic where the values are positive and far apart"""
    is_stacked: bool = False
    borders: Sequence[float] = ()
    """where something began anew"""
    border_text: str = ""
    mark: Mark | None = None
