from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from paceline.reports.chart import Chart, Mark, Series
from paceline.reports.svg import HEIGHT, WIDTH, Drawing, draw_chart


def parse(drawing: Drawing) -> dict[str, list[ElementTree.Element]]:
    """Elements by their first class; it must be well-formed."""
    found: dict[str, list[ElementTree.Element]] = {}
    for element in ElementTree.fromstring(drawing.markup).iter():
        found.setdefault(element.get("class", element.tag).split()[0], []).append(element)
    return found


def places(path: ElementTree.Element) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_curve_lies_where_its_values_are() -> None:
    chart = Chart("memory", "GiB", [Series("memory", [0, 50, 100], [0.0, 4.0, 2.0])], from_zero=True)
    found = parse(draw_chart(chart))
    (line,) = found["line"]
    (x0, low), (x1, high), (x2, middle) = places(line)
    assert x0 < x1 < x2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places(line))
    texts = [element.text for kind in ("end", "middle", "unit") for element in found[kind]]
    assert texts == ["0", "1", "2", "3", "4", "0", "20", "40", "60", "80", "100", "GiB", "step"]


def test_each_drawn_point_has_its_number_for_the_pointer() -> None:
    steps = list(range(1, 5001))
    series = [
        Series(name, steps, [math.sin(step / 300) * size for step in steps]) for name, size in (("a", 1), ("b", 2))
    ]
    drawing = draw_chart(Chart("t", "ms", series))
    found = parse(drawing)
    for line, (name, xs, ys) in zip(found["line"], drawing.hover["curves"], strict=True):
        assert len(places(line)) == len(xs) == len(ys) <= 800, name
    assert [text for _, text in drawing.legend] == ["a", "b"]
    assert len(found["mean"]) == 2


def test_a_single_value_is_a_dot() -> None:
    (line,) = parse(draw_chart(Chart("loss", "", [Series("loss", [1], [2.5])], x_range=(0, 1))))["line"]
    assert line.get("d", "").endswith("z")
    assert len(places(line)) == 1


def test_values_far_apart_are_on_a_logarithmic_axis() -> None:
    series = [Series("loss", [0, 1, 2], [0.1, 10.0, 1000.0])]
    found = parse(draw_chart(Chart("loss", "loss", series, may_be_log=True)))
    (_, low), (_, middle), (_, high) = places(found["line"][0])
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    assert found["unit"][0].text == "loss · logarithmic"
    for values in ([0.0, 10.0, 1000.0], [5.0, 10.0, 6.0]):
        linear = Chart("loss", "loss", [Series("loss", [0, 1, 2], values)], may_be_log=True)
        assert parse(draw_chart(linear))["unit"][0].text == "loss"


def test_what_is_not_finite_is_a_cross_that_the_legend_explains() -> None:
    chart = Chart("loss", "", [Series("loss", [1, 2, 3], [2.0, math.nan, math.inf])])
    drawing = draw_chart(chart)
    assert parse(drawing)["lost"][0].get("d", "").count("M") == 2
    assert drawing.legend == [("lost", "not finite (nan or inf)")]


@pytest.mark.parametrize("values", [[math.nan], [1e308, -1e308], [0.0], [1e-320, 1.0], [-5.0, -5.0]])
def test_any_values_give_a_drawing_with_numbers_in_it(values: list[float]) -> None:
    chart = Chart("loss", "", [Series("loss", list(range(len(values))), values)], may_be_log=True)
    markup = draw_chart(chart).markup
    ElementTree.fromstring(markup)
    assert not re.search(r"nan|inf[^i]", markup.replace("not finite (nan or inf)", ""))


def test_a_stack_adds_up_and_the_pointer_says_each_part() -> None:
    steps = [1, 2, 3]  # the last window was not timed: no phase took no time
    series = [Series("data", steps, [1.0, 2.0, None]), Series("forward", steps, [3.0, 4.0, None])]
    drawing = draw_chart(Chart("phases", "ms", series, is_stacked=True, from_zero=True))
    found = parse(drawing)
    assert len(found["area"]) == 2
    (_, base), (_, first) = places(found["line"][0])[0], places(found["line"][1])[0]
    bottom = HEIGHT - 36
    assert (bottom - first) / (bottom - base) == pytest.approx(4.0, abs=0.1)
    assert [ys for _, _, ys in drawing.hover["curves"]] == [[1.0, 2.0], [3.0, 4.0]]


def test_borders_and_the_mark_are_drawn_and_explained() -> None:
    mark = Mark(2, 0.5, "best: 0.5 at step 2")
    series = [Series("ndcg_10", [1, 2, 3], [0.1, 0.5, 0.4])]
    drawing = draw_chart(Chart("ndcg_10", "", series, borders=[2, 900], border_text="another attempt began", mark=mark))
    found = parse(drawing)
    assert found["border"][0].get("d", "").count("M") == 1  # the other one lies outside
    assert (float(found["mark"][0].get("cx", 0)), float(found["mark"][0].get("cy", 0))) == places(found["line"][0])[1]
    assert drawing.legend == [("mark", mark.text), ("border", "another attempt began")]


def test_text_is_escaped() -> None:
    drawing = draw_chart(Chart('<b>"', "<script>", [Series("<i>", [1], [1.0])]))
    ElementTree.fromstring(drawing.markup)
    assert "<script>" not in drawing.markup
    assert "&lt;script&gt;" in drawing.markup
