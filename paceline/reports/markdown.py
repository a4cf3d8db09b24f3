"""Writes a page as Markdown: the same sections, tables and notes; a chart becomes a row with its shape and its extremes.

| curve | shape | first | last | least | most |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.reports.amounts import count, figure, spark
from paceline.reports.chart import Chart
from paceline.reports.page import Charts, Listing, Note, Page, Part

_CURVES = ("curve", "unit", "shape", "first", "last", "least", "at step", "most", "at step")


def render_markdown(page: Page) -> str:
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"# {_plain(page.title)}"
    yield ""
    yield f"**{_plain(page.subtitle)}**"
    yield ""
    for name, value in page.facts:
        yield f"- {_plain(name)}: {_plain(value)}"
    for section in page.sections:
        yield ""
        yield f"## {_plain(section.title)}"
        for part in section.parts:
            yield ""
            yield from _part(part)
    yield ""
    yield _plain(page.footer)


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Note):
        yield f"**{_plain(part.text)}**" if part.tone in ("bad", "warning") else _plain(part.text)
    elif isinstance(part, Listing):
        yield _plain(part.caption)
        yield ""
        yield from ("    " + line for line in part.text.splitlines())
    elif isinstance(part, Charts):
        rows = [row for chart in part.charts for row in _curve_rows(chart)]
        yield from _table(_CURVES, rows, {"first", "last", "least", "most", "at step"})
    else:
        if part.caption:
            yield _plain(part.caption)
            yield ""
        yield from _table(part.columns, part.rows, part.numbers)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[str] | set[str]) -> Iterator[str]:
    yield _row(columns)
    yield "|" + "|".join("---:" if name in numbers else "---" for name in columns) + "|"
    for row in rows:
        yield _row(row)


def _curve_rows(chart: Chart) -> Iterator[tuple[str, ...]]:
    for series in chart.series:
        name = chart.title if len(chart.series) == 1 else f"{chart.title}, {series.name}"
        points = series.thinned.points
        if not points:
            yield (name, chart.unit, "nothing finite", "", "", "", "", "", "")
            continue
        least, most = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
        shape = spark(series.y)
        ends = (figure(series.first()), figure(series.last()))
        yield (name, chart.unit, shape, *ends, figure(least[1]), count(least[0]), figure(most[1]), count(most[0]))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """On one line, and nothing in it that Markdown would take for HTML or emphasis."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*").replace("`", "\\`")
