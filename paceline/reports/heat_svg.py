"""Draws a heat map as SVG: a darker cell is a greater number, and the number stands in it where there is room.

drawing = draw_heat_map(HeatMap("…", "samples/s", "num_workers", ["0", "2"], "bucket_mb", ["25", "50"], cells))
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.reports.amounts import figure
from paceline.reports.heat_map import Cell, HeatMap
from paceline.reports.lettering import fit, width_of
from paceline.reports.svg import WIDTH, Drawing

ROW = 30
_TOP, _BOTTOM = 22, 42
_RIGHT = 4
_MOST_LEFT = 130
_PALE, _STRONG = 0.06, 0.6
"""of the cells' colour; the letters in them must stay readable on both"""


def draw_heat_map(chart: HeatMap) -> Drawing:
    left = min(_MOST_LEFT, max((width_of(value) for value in chart.y_values), default=0.0)) + 10
    across = (WIDTH - _RIGHT - left) / max(1, len(chart.x_values))
    bottom = _TOP + ROW * len(chart.y_values)
    # One number that has no room takes the others with it: a part of them would say which cells matter.
    has_room = all(width_of(_words(cell)) <= across - 4 for cell in chart.cells.values())
    parts: list[str] = []
    outlines: list[str] = []
    points: list[list[float | str]] = []
    for (column, row), cell in sorted(chart.cells.items()):
        x, y = left + across * column, _TOP + ROW * row
        middle = (round(x + across / 2, 1), y + ROW / 2)
        parts.append(_cell(chart, cell, x, y, across))
        if has_room:
            parts.append(
                f'<text class="value middle" x="{middle[0]}" y="{middle[1] + 4}">{escape(_words(cell))}</text>'
            )
        if cell.outline:
            place = f'x="{x + 2:.1f}" y="{y + 2:.1f}" width="{across - 4:.1f}" height="{ROW - 4}"'
            outlines.append(f'<rect class="{cell.outline}" {place}/>')
        points.append([*middle, _told(chart, column, row, cell)])
    parts += outlines + _names(chart, left, across, bottom)
    title = escape(f"{chart.unit} by {chart.y_name} and {chart.x_name}")
    opening = f'<svg viewBox="0 0 {WIDTH} {bottom + _BOTTOM}" role="img" aria-label="{title}">'
    here = '<circle class="here" r="3"/>'
    return Drawing(opening + "".join(parts) + here + "</svg>", _legend(chart), {"points": points})


def _words(cell: Cell) -> str:
    return short(cell.value) if cell.value is not None else cell.word


def short(value: float) -> str:
    """To four digits: neighbours are compared, not added up."""
    if abs(value) >= 1e5:
        size, unit = next(each for each in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(value) >= each[0])
        return f"{value / size:.4g}{unit}"
    if 0 < abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _cell(chart: HeatMap, cell: Cell, x: float, y: float, across: float) -> str:
    place = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{max(1.0, across - 2):.1f}" height="{ROW - 2}"'
    if cell.value is None:
        return f'<rect class="nothing" {place}/>'
    low, high = chart.bounds
    share = (cell.value - low) / (high - low) if high > low else 1.0
    return f'<rect class="heat" fill-opacity="{_PALE + (_STRONG - _PALE) * share:.2f}" {place}/>'


def _names(chart: HeatMap, left: float, across: float, bottom: float) -> list[str]:
    texts = [
        f'<text class="end" x="{left - 5:.1f}" y="{_TOP + ROW * row + ROW / 2 + 4}">{escape(fit(value, left - 8))}</text>'
        for row, value in enumerate(chart.y_values)
    ]
    texts += [
        f'<text class="middle" x="{left + across * (column + 0.5):.1f}" y="{bottom + 14}">{escape(label)}</text>'
        for column, label in enumerate(_column_labels(chart.x_values, across))
        if label
    ]
    texts.append(f'<text class="unit" x="2" y="11">{escape(fit(f"{chart.y_name} ↓", WIDTH / 2))}</text>')
    texts.append(f'<text class="unit end" x="{WIDTH - 2}" y="11">{escape(fit(chart.unit, WIDTH / 2 - 12))}</text>')
    right = f"{chart.x_name} →"
    texts.append(f'<text class="unit end" x="{WIDTH - 2}" y="{bottom + 32}">{escape(fit(right, WIDTH - 4))}</text>')
    return texts


def _column_labels(values: Sequence[str], across: float) -> list[str]:
    """Every one where they fit; where a column is narrower than three letters, every second one, and so on."""
    every = max(1, round(30 / across + 0.5)) if across < 30 else 1
    return [fit(value, across * every - 6) if place % every == 0 else "" for place, value in enumerate(values)]


def _told(chart: HeatMap, column: int, row: int, cell: Cell) -> str:
    said = f"{figure(cell.value)} {chart.unit}" if cell.value is not None else cell.word
    more = f" ({cell.outline})" if cell.outline else ""
    return f"{chart.y_name}={chart.y_values[row]} {chart.x_name}={chart.x_values[column]}: {said}{more}"


def _legend(chart: HeatMap) -> list[tuple[str, str]]:
    outlines = {cell.outline for cell in chart.cells.values()}
    found: list[tuple[str, str]] = [(word, word) for word in ("winner", "baseline") if word in outlines]
    if any(cell.value is None for cell in chart.cells.values()):
        found.append(("nothing", "no number"))
    return found
