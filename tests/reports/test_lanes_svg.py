from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from paceline.reports.lanes import Dot, Lane, Lanes, Line, Span
from paceline.reports.lanes_svg import LANE, draw_lanes
from paceline.reports.svg import WIDTH
from tests.reports.test_svg import parse


def build(*lanes: Lane, **more: object) -> Lanes:
    return Lanes("ranking", "samples/s", lanes, **more)  # type: ignore[arg-type]


def test_dots_and_whiskers_lie_where_their_values_are() -> None:
    lanes = [Lane("a", [Span(90, 110)], [Dot(100, "a: 100")]), Lane("b", [Span(40, 60, "bar")], [Dot(50, "b", "tick")])]
    drawing = draw_lanes(build(*lanes, lines=[Line(75, "baseline")]))
    found = parse(drawing)
    dot = float(found["point"][0].get("cx", 0))
    low, right = re.match(r"M([\d.]+),[\d.]+H([\d.]+)", found["whisker"][0].get("d", "")).groups()  # type: ignore[union-attr]
    assert dot - float(low) == pytest.approx(float(right) - dot, abs=0.2)
    (line,) = re.findall(r"M([\d.]+),", found["border"][0].get("d", ""))
    tick = float(re.findall(r"M([\d.]+),", found["whisker"][1].get("d", ""))[0])
    assert float(line) - tick == pytest.approx(dot - float(line), abs=0.2)
    assert [text for _, _, text in drawing.hover["points"]] == ["a: 100", "b"]
    first, second = (y for _, y, _ in drawing.hover["points"])
    assert second - first == LANE
    assert drawing.legend == [("border", "baseline")]


def test_a_lane_without_numbers_is_its_name_and_a_word() -> None:
    found = parse(draw_lanes(build(Lane("huge", aside="does not fit"), Lane("ok", dots=[Dot(1, "")]))))
    assert [element.text for element in found["name"]] == ["huge", "ok"]
    assert [element.text for element in found["aside"]] == ["does not fit"]


def test_what_lies_outside_the_range_is_not_drawn_and_a_span_is_cut() -> None:
    lanes = [Lane("a", [Span(-50, 5), Span(20, 30)], [Dot(40, "far"), Dot(1, "near")])]
    drawing = draw_lanes(build(*lanes, x_range=(0.0, 10.0), lines=[Line(99, "far")], band=(8, 200), band_text="same"))
    assert [text for _, _, text in drawing.hover["points"]] == ["near"]
    found = parse(drawing)
    (whisker,) = found["whisker"]
    assert whisker.get("d", "").count("v8") == 1  # the end outside has no cap
    assert "border" not in found
    band = found["band"][0]
    assert float(band.get("x", 0)) + float(band.get("width", 0)) <= WIDTH


def test_a_long_list_has_its_axis_at_both_ends() -> None:
    def labels(count: int) -> int:
        lanes = [Lane(str(number), dots=[Dot(number, "")]) for number in range(count)]
        return len(parse(draw_lanes(build(*lanes, x_range=(0.0, 50.0))))["middle"])

    assert labels(40) == 2 * labels(8) > 0


@pytest.mark.parametrize(
    "values", [[0.0], [5.0, 5.0], [-3.0, 3.0], [1e-9, 2e-9], [1e12, 2e12], [1e300, -1e300], [], [1.0001, 1.0002]]
)
def test_any_values_give_a_drawing_with_numbers_in_it(values: list[float]) -> None:
    markup = draw_lanes(build(*(Lane("a", dots=[Dot(value, "")]) for value in values))).markup
    ElementTree.fromstring(markup)
    assert not re.search(r"nan|inf", markup)
    places = [float(place) for place in re.findall(r'cx="([^"]+)"', markup)]
    assert all(0 <= place <= WIDTH and math.isfinite(place) for place in places)


def test_text_is_escaped() -> None:
    drawing = draw_lanes(Lanes("<b>", "<i>", [Lane("<script>", aside="<u>")]))
    ElementTree.fromstring(drawing.markup)
    assert "<script>" not in drawing.markup
