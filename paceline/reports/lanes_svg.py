"""Draws lanes as SVG: each has its name above it, so that a long one costs no width and a narrow screen shows the same.

    drawing = draw_lanes(Lanes("ranking", "samples/s", lanes))

Of the drawing's numbers, `hover` has the place and the text of each dot.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from paceline.reports.axis import Axis, build_x_axis
from paceline.reports.lanes import Dot, Lane, Lanes, Span
from paceline.reports.lettering import DIGIT, fit, fit_case, width_of
from paceline.reports.svg import WIDTH, Drawing

LANE = 33
"""the height of one"""
_TOP, _BOTTOM = 18, 36
_LEFT, _RIGHT = 22, 26
_MARKS = 21
"""from the top of a lane down to its marks"""
_MANY = 12
"""more lanes than these have the axis above them, too"""
_TICK = 16
_GAP = 8
_MARGIN = 0.04


def draw_lanes(lanes: Lanes) -> Drawing:
    is_long = len(lanes.lanes) > _MANY
    top = _TOP + (_TICK if is_long else 0)
    bottom = top + LANE * len(lanes.lanes)
    height = bottom + _BOTTOM
    axis = build_x_axis(lanes.x_range or _range(lanes), _LEFT, WIDTH - _RIGHT, DIGIT, whole=False)
    parts = [*_ground(lanes, axis, top, bottom), *_axis(lanes, axis, top, bottom, is_long)]
    points: list[list[float | str]] = []
    for number, lane in enumerate(lanes.lanes):
        y = top + LANE * number
        parts.append(_lane(lane, axis, y))
        points += [[round(axis.place(dot.x), 1), y + _MARKS, dot.text] for dot in lane.dots if axis.holds(dot.x)]
    opening = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(lanes.title)}, a lane for each {lanes.noun}">'
    here = '<circle class="here" r="3"/>'
    return Drawing(opening + "".join(parts) + here + "</svg>", _legend(lanes, axis), {"points": points})


def _range(lanes: Lanes) -> tuple[float, float]:
    values = [value for lane in lanes.lanes for value in lane.values] + [line.x for line in lanes.lines]
    if not values:
        return (0.0, 1.0)
    low, high = min(values), max(values)
    room = (high - low) * _MARGIN or abs(high) * 0.1 or 1.0
    return (low - room if low < 0 or low > room else 0.0, high + room)


def _ground(lanes: Lanes, axis: Axis, top: float, bottom: float) -> Iterator[str]:
    if lanes.band is not None:
        low, high = (min(max(end, axis.low), axis.high) for end in lanes.band)
        if low < high:
            left, right = axis.place(low), axis.place(high)
            yield f'<rect class="band" x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{bottom - top}"/>'
    grid = "".join(f"M{axis.place(value):.1f},{top}V{bottom}" for value, _ in axis.ticks)
    yield f'<path class="grid" d="{grid}"/>'
    lines = "".join(f"M{axis.place(line.x):.1f},{top}V{bottom}" for line in lanes.lines if axis.holds(line.x))
    if lines:
        yield f'<path class="border" d="{lines}"/>'


def _axis(lanes: Lanes, axis: Axis, top: float, bottom: float, is_long: bool) -> Iterator[str]:
    yield f'<path class="axis" d="M{axis.start:.1f},{bottom}H{axis.end:.1f}"/>'
    for value, label in axis.ticks:
        for y in (bottom + 14, *((top - 4,) if is_long else ())):
            yield f'<text class="middle" x="{axis.place(value):.1f}" y="{y}">{escape(label)}</text>'
    yield f'<text class="unit end" x="{WIDTH - 2}" y="{bottom + 30}">{escape(fit(lanes.unit, WIDTH - 4))}</text>'
    if is_long:
        yield f'<text class="unit end" x="{WIDTH - 2}" y="11">{escape(fit(lanes.unit, WIDTH - 4))}</text>'


def _lane(lane: Lane, axis: Axis, y: float) -> str:
    aside = fit(lane.aside, WIDTH / 2)
    room = WIDTH - 4 - (width_of(aside) + _GAP if aside else 0)
    text = f'<text class="name" x="2" y="{y + 11}">{escape(fit_case(lane.name, room))}</text>'
    if aside:
        text += f'<text class="aside end" x="{WIDTH - 2}" y="{y + 11}">{escape(aside)}</text>'
    middle = y + _MARKS
    spans = "".join(_span(span, axis, middle, lane.colour) for span in lane.spans)
    return text + spans + "".join(_dot(dot, axis, middle, lane.colour) for dot in lane.dots if axis.holds(dot.x))


def _span(span: Span, axis: Axis, y: float, colour: int) -> str:
    """As far as the axis reaches; an end that lies outside has no cap."""
    if span.high < axis.low or span.low > axis.high:
        return ""
    low, high = axis.place(max(span.low, axis.low)), axis.place(min(span.high, axis.high))
    if span.kind == "bar":
        return f'<path class="area s{colour}" d="M{low:.1f},{y - 4}H{high:.1f}V{y + 4}H{low:.1f}z"/>'
    ends = "".join(
        f"M{place:.1f},{y - 4}v8"
        for place, value in ((low, span.low), (high, span.high))
        if axis.low <= value <= axis.high
    )
    return f'<path class="whisker s{colour}" d="M{low:.1f},{y}H{high:.1f}{ends}"/>'


def _dot(dot: Dot, axis: Axis, y: float, colour: int) -> str:
    x = axis.place(dot.x)
    if dot.kind == "lost":
        return f'<path class="lost" d="M{x - 3:.1f},{y - 3}l6,6m0,-6l-6,6"/>'
    if dot.kind == "tick":
        return f'<path class="whisker s{colour}" d="M{x:.1f},{y - 5}v10"/>'
    return f'<circle class="{dot.kind} s{colour}" r="4" cx="{x:.1f}" cy="{y}"/>'


def _legend(lanes: Lanes, axis: Axis) -> list[tuple[str, str]]:
    found = list(lanes.legend)
    if lanes.band is not None:
        found.append(("band", lanes.band_text))
    return found + [("border", line.text) for line in lanes.lines if axis.holds(line.x)]
