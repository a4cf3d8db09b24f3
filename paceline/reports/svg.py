"""Draws a chart as SVG: axes with round ticks, thinned curves, and what a legend and a pointer need. Colours are the page's business.

    drawing = draw_chart(Chart("loss", "", [Series("loss", steps, losses)]))
    drawing.markup     -> '<svg viewBox="0 0 384 220" …'
    drawing.legend     -> [("line s0", "loss")]

The numbers of a drawn curve are in the same order as its points in `hover`: a script can say what it points at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from paceline.reports.axis import Axis, build_x_axis, build_y_axis
from paceline.reports.chart import COLUMNS, Chart, Mark
from paceline.reports.lettering import DIGIT
from paceline.reports.thinning import Point, Thinned, mean_of, split_columns

WIDTH, HEIGHT = 384, 220
_TOP, _RIGHT, _BOTTOM = 26, 16, 36
_FEW = 40
"""so many points are drawn as dots, too"""


@dataclass(frozen=True)
class Drawing:
    """A drawn chart."""

    markup: str
    legend: list[tuple[str, str]]
    """(classes of its sample, text)"""
    hover: dict[str, Any]


@dataclass
class _Curve:
    name: str
    drawn: Thinned
    values: list[float]
    """what the points stand for; in a stack not where they lie"""
    base: list[Point] = field(default_factory=list)
    """the curve below, in a stack"""


def draw_chart(chart: Chart) -> Drawing:
    curves = _stack(chart) if chart.is_stacked else _curves(chart)
    points = [point for curve in curves for point in curve.drawn.points]
    ys = [y for _, y in points] + ([chart.mark.y] if chart.mark else [])
    y_axis = build_y_axis(ys, HEIGHT - _BOTTOM, _TOP, from_zero=chart.from_zero, may_be_log=chart.may_be_log)
    left = 10 + DIGIT * max((len(label) for _, label in y_axis.ticks), default=0)
    xs = [x for series in chart.series for x in (*series.x[:1], *series.x[-1:])]
    x_axis = build_x_axis(chart.x_range or (min(xs, default=0), max(xs, default=1)), left, WIDTH - _RIGHT, DIGIT)
    lost = sorted({x for curve in curves for x in curve.drawn.lost})
    parts = [_grid(x_axis, y_axis), _borders(chart.borders, x_axis), _labels(chart, x_axis, y_axis)]
    parts += [_area(curve, number, x_axis, y_axis) for number, curve in enumerate(curves) if curve.base]
    parts += [_line(curve, number, x_axis, y_axis) for number, curve in enumerate(curves)]
    parts += [_lost(lost, x_axis), _mark(chart.mark, x_axis, y_axis), '<circle class="here" r="3.5"/>']
    title = escape(f"{chart.title} over {chart.x_label}")
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
    return Drawing(
        opening + "".join(parts) + "</svg>",
        _legend(chart, curves, bool(lost), x_axis),
        {
            "x": chart.x_label,
            "unit": chart.unit,
            "curves": [
                [curve.name, [x for x, _ in curve.drawn.points], [float(f"{value:.6g}") for value in curve.values]]
                for curve in curves
            ],
        },
    )


def _curves(chart: Chart) -> list[_Curve]:
    return [_Curve(each.name, each.thinned, [y for _, y in each.thinned.points]) for each in chart.series]


def _stack(chart: Chart) -> list[_Curve]:
    """Each curve on top of the one before; the mean of a column stands for it, because extremes cannot be added up."""
    x = chart.series[0].x
    means = {
        x[column[-1]]: [mean_of(series.y, column) for series in chart.series] for column in split_columns(x, COLUMNS)
    }
    known = {place: values for place, values in means.items() if any(value is not None for value in values)}
    if len(known) == 1:  # as wide as a step
        ((place, values),) = known.items()
        known = {place - 1: values, place: values}
    below = [0.0] * len(known)
    found = []
    for number, series in enumerate(chart.series):
        parts = [column[number] or 0.0 for column in known.values()]
        base = list(zip(known, below, strict=True))
        below = [low + value for low, value in zip(below, parts, strict=True)]
        top = list(zip(known, below, strict=True))
        found.append(_Curve(series.name, Thinned([top] if top else [], [], []), parts, base))
    return found


def _grid(x_axis: Axis, y_axis: Axis) -> str:
    lines = [f"M{x_axis.start:.1f},{y_axis.place(value):.1f}H{x_axis.end:.1f}" for value, _ in y_axis.ticks]
    bottom = f"M{x_axis.start:.1f},{y_axis.start:.1f}H{x_axis.end:.1f}"
    small = [f"M{x_axis.place(value):.1f},{y_axis.start:.1f}v4" for value, _ in x_axis.ticks]
    return f'<path class="grid" d="{"".join(lines)}"/><path class="axis" d="{bottom}{"".join(small)}"/>'


def _labels(chart: Chart, x_axis: Axis, y_axis: Axis) -> str:
    texts = [
        f'<text class="end" x="{x_axis.start - 6:.1f}" y="{y_axis.place(value) + 4:.1f}">{escape(label)}</text>'
        for value, label in y_axis.ticks
    ]
    texts += [
        f'<text class="middle" x="{x_axis.place(value):.1f}" y="{y_axis.start + 16:.1f}">{escape(label)}</text>'
        for value, label in x_axis.ticks
    ]
    unit = " · ".join(word for word in (chart.unit, "logarithmic" if y_axis.is_log else "") if word)
    texts.append(f'<text class="unit" x="2" y="11">{escape(unit)}</text>')
    texts.append(f'<text class="unit end" x="{x_axis.end:.1f}" y="{HEIGHT - 4}">{escape(chart.x_label)}</text>')
    return "".join(texts)


def _borders(borders: Sequence[float], x_axis: Axis) -> str:
    lines = "".join(f"M{x_axis.place(x):.1f},{_TOP}V{HEIGHT - _BOTTOM}" for x in borders if x_axis.holds(x))
    return f'<path class="border" d="{lines}"/>' if lines else ""


def _line(curve: _Curve, number: int, x_axis: Axis, y_axis: Axis) -> str:
    means = _path(curve.drawn.means, x_axis, y_axis)
    faint = " faint" if means else ""
    line = f'<path class="line s{number}{faint}" d="{_path(curve.drawn.pieces, x_axis, y_axis)}"/>'
    if means:
        return f'{line}<path class="mean s{number}" d="{means}"/>'
    if curve.base or len(curve.values) > _FEW:
        return line
    dots = "".join(f"M{_place(point, x_axis, y_axis)}z" for point in curve.drawn.points)
    return f'{line}<path class="dots s{number}" d="{dots}"/>'


def _path(pieces: Sequence[Sequence[Point]], x_axis: Axis, y_axis: Axis) -> str:
    # A piece of one point is closed onto itself: round ends make it a dot.
    return "".join(
        "M" + " ".join(_place(point, x_axis, y_axis) for point in piece) + ("z" if len(piece) == 1 else "")
        for piece in pieces
    )


def _area(curve: _Curve, number: int, x_axis: Axis, y_axis: Axis) -> str:
    around = [*curve.drawn.points, *reversed(curve.base)]
    outline = " ".join(_place(point, x_axis, y_axis) for point in around)
    return f'<path class="area s{number}" d="M{outline}z"/>'


def _lost(lost: Sequence[float], x_axis: Axis) -> str:
    y = HEIGHT - _BOTTOM - 3
    crosses = "".join(f"M{x_axis.place(x) - 3:.1f},{y - 3}l6,6m0,-6l-6,6" for x in lost)
    return f'<path class="lost" d="{crosses}"/>' if crosses else ""


def _mark(mark: Mark | None, x_axis: Axis, y_axis: Axis) -> str:
    if mark is None:
        return ""
    return f'<circle class="mark" r="5" cx="{x_axis.place(mark.x):.1f}" cy="{y_axis.place(mark.y):.1f}"/>'


def _place(point: Point, x_axis: Axis, y_axis: Axis) -> str:
    return f"{x_axis.place(point[0]):.1f},{y_axis.place(point[1]):.1f}"


def _legend(chart: Chart, curves: Sequence[_Curve], has_lost: bool, x_axis: Axis) -> list[tuple[str, str]]:
    kind = "area" if chart.is_stacked else "line"
    found = [(f"{kind} s{number}", curve.name) for number, curve in enumerate(curves)] if len(curves) > 1 else []
    if chart.mark:
        found.append(("mark", chart.mark.text))
    if any(x_axis.holds(x) for x in chart.borders):
        found.append(("border", chart.border_text))
    if has_lost:
        found.append(("lost", "not finite (nan or inf)"))
    return found
