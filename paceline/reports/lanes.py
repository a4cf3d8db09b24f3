"""Lanes before they are drawn: one line per case over a shared axis, with what was measured of it as dots, whiskers and bars.

Lanes("ranking", "samples/s", [Lane("a", [Span(98, 104)], [Dot(101, "a: 101")], 2, "winner")], lines=[Line(95, "baseline")])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

DotKind = Literal["point", "ring", "tick", "lost"]


@dataclass(frozen=True)
class Span:
    """From one value to another: a thin whisker with ends, or a broad bar."""

    low: float
    high: float
    kind: Literal["whisker", "bar"] = "whisker"


@dataclass(frozen=True)
class Dot:
    """One value."""

    x: float
    text: str
    """what a pointer is told"""
    kind: DotKind = "point"


@dataclass(frozen=True)
class Lane:
    """What is known of one case; a lane without spans and dots is a name and a remark."""

    name: str
    spans: Sequence[Span] = ()
    dots: Sequence[Dot] = ()
    colour: int = 0
    aside: str = ""
    """a word at its right end"""

    @property
    def values(self) -> list[float]:
        return [*(end for span in self.spans for end in (span.low, span.high)), *(dot.x for dot in self.dots)]


@dataclass(frozen=True)
class Line:
    """A value that all lanes are compared with."""

    x: float
    text: str


@dataclass(frozen=True)
class Lanes:
    """Lanes below each other, over one axis in one unit."""

    title: str
    unit: str
    lanes: Sequence[Lane]
    lines: Sequence[Line] = ()
    band: tuple[float, float] | None = None
    """a range that counts as the same"""
    band_text: str = ""
    legend: Sequence[tuple[str, str]] = ()
    """(classes of its sample, text) of what dots, spans and colours mean"""
    x_range: tuple[float, float] | None = None
    """None: as far as the values go, with a margin"""
    noun: str = "case"
    """what a lane is"""
