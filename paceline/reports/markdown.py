"""Writes a page as Markdown: the same sections, tables and notes; a curve becomes a row with its shape, a lane a row with its marks.

| curve | shape | first | last | least | most |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from paceline.reports.amounts import count, figure, lane, spark
from paceline.reports.chart import Chart
from paceline.reports.heat_map import HeatMap
from paceline.reports.lanes import Lanes
from paceline.reports.page import Charts, Figure, Link, Listing, Note, Page, Part


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
        for number, (_, charts) in enumerate(groupby(part.charts, _kind)):
            yield from [""] if number else []
            yield from _charts(list(charts))
    else:
        if part.caption:
            yield _plain(part.caption)
            yield ""
        yield from _table(part.columns, part.rows, part.numbers)


def _kind(chart: Figure) -> object:
    """Curves over the same axis share a table; anything else has one of its own."""
    return (Chart, chart.x_label) if isinstance(chart, Chart) else chart.title


def _charts(charts: Sequence[Figure]) -> Iterator[str]:
    curves = [chart for chart in charts if isinstance(chart, Chart)]
    if curves:
        place = f"at {curves[0].x_label}"
        columns = ("curve", "unit", "shape", "first", "last", "least", place, "most", place)
        rows = [row for chart in curves for row in _curve_rows(chart)]
        yield from _table(columns, rows, {"first", "last", "least", "most", place})
    for chart in charts:
        if isinstance(chart, Lanes):
            yield from _lanes(chart)
        elif isinstance(chart, HeatMap):
            yield from _heat_map(chart)


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Link]], numbers: frozenset[str] | set[str]
) -> Iterator[str]:
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


def _lanes(chart: Lanes) -> Iterator[str]:
    values = [value for each in chart.lanes for value in each.values]
    low, high = chart.x_range or (min(values, default=0.0), max(values, default=0.0))
    unit = f"{chart.unit}, from {figure(low)} to {figure(high)}" if values else chart.unit
    yield f"{_plain(chart.title)} ({_plain(unit)})"
    yield ""
    rows = [
        (
            each.name,
            lane(low, high, [(span.low, span.high) for span in each.spans], [dot.x for dot in each.dots]),
            each.aside,
        )
        for each in chart.lanes
    ]
    yield from _table((chart.noun, chart.title, ""), rows, frozenset())


def _heat_map(chart: HeatMap) -> Iterator[str]:
    yield f"{_plain(chart.title)} ({_plain(chart.unit)}): rows are {_plain(chart.y_name)}, columns {_plain(chart.x_name)}"
    yield ""
    rows = []
    for row, value in enumerate(chart.y_values):
        cells = [chart.cells.get((column, row)) for column in range(len(chart.x_values))]
        words = ["" if cell is None else cell.word if cell.value is None else figure(cell.value) for cell in cells]
        marks = ["" if cell is None or not cell.outline else f" ({cell.outline})" for cell in cells]
        rows.append((value, *(word + mark for word, mark in zip(words, marks, strict=True))))
    yield from _table((chart.y_name, *chart.x_values), rows, frozenset(chart.x_values))


def _row(cells: Sequence[str | Link]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(cell: str | Link) -> str:
    if isinstance(cell, Link):
        # Brackets would end the text of the link.
        return f"[{_cell(cell.text).replace('[', '(').replace(']', ')')}]({cell.target})"
    return _plain(cell).replace("|", "\\|")


def _plain(text: str) -> str:
    """On one line, and nothing in it that Markdown would take for HTML or emphasis."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*").replace("`", "\\`")
