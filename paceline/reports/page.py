"""A page before it is written: sections of notes, tables and charts, the same for HTML and Markdown.

Page("sasrec", "finished", [("ranks", "2")], [Section("Results", [Table(("result", "value"), [("loss", "3.7")])])])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.reports.chart import Chart
from paceline.reports.heat_map import HeatMap
from paceline.reports.lanes import Lanes

Figure = Chart | Lanes | HeatMap
Tone = Literal["plain", "good", "warning", "bad"]


@dataclass(frozen=True)
class Note:
    """A sentence."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Link:
    """Text that leads to a file beside the page."""

    text: str
    target: str
    """relative to the page, with every odd character escaped"""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    numbers: frozenset[str] = frozenset()
    """the columns that hold numbers"""
    caption: str = ""
    is_folded: bool = False
    """shown when asked for; the caption is always there"""
    names: frozenset[str] = frozenset()
    """the columns that hold names, which are broken only where they are long"""


@dataclass(frozen=True)
class Charts:
    """Charts beside each other."""

    charts: Sequence[Figure]


@dataclass(frozen=True)
class Listing:
    """Lines as they were printed, such as a traceback; folded."""

    caption: str
    text: str


Part = Note | Table | Charts | Listing


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """Everything a page says."""

    title: str
    subtitle: str
    tone: Tone
    """of the subtitle: how it went"""
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section] = field(default_factory=list)
    footer: str = ""
