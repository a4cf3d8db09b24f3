from __future__ import annotations

from xml.etree import ElementTree

from paceline.reports.heat_map import Cell, HeatMap
from paceline.reports.heat_svg import draw_heat_map, short
from tests.reports.test_svg import parse


def build(columns: int = 2, rows: int = 3, **cells: Cell) -> HeatMap:
    values = {(c, r): Cell(100.0 + 10 * c + r) for c in range(columns) for r in range(rows)}
    values |= {(int(name[1]), int(name[2])): cell for name, cell in cells.items()}
    across, down = [str(c) for c in range(columns)], [str(r) for r in range(rows)]
    return HeatMap("a and b", "samples/s", "a", across, "b", down, values)


def test_a_greater_number_is_darker_and_stands_in_its_cell() -> None:
    found = parse(draw_heat_map(build()))
    shades = [float(cell.get("fill-opacity", 0)) for cell in found["heat"]]
    assert shades == sorted(shades)
    assert shades[0] < shades[-1] <= 0.6
    assert [text.text for text in found["value"]] == ["100", "101", "102", "110", "111", "112"]
    across = {float(cell.get("x", 0)) for cell in found["heat"]}
    down = {float(cell.get("y", 0)) for cell in found["heat"]}
    assert (len(across), len(down)) == (2, 3)


def test_winner_baseline_and_what_has_no_number_are_told_apart() -> None:
    drawing = draw_heat_map(
        build(c00=Cell(200.0, outline="winner"), c11=Cell(90.0, outline="baseline"), c02=Cell(None, "failed"))
    )
    found = parse(drawing)
    assert len(found["winner"]) == len(found["baseline"]) == len(found["nothing"]) == 1
    assert drawing.legend == [("winner", "winner"), ("baseline", "baseline"), ("nothing", "no number")]
    assert "b=0 a=0: 200.00 samples/s (winner)" in [text for _, _, text in drawing.hover["points"]]
    assert "b=2 a=0: failed" in [text for _, _, text in drawing.hover["points"]]


def test_where_one_number_has_no_room_none_is_shown_and_a_pointer_is_still_told() -> None:
    drawing = draw_heat_map(build(columns=30))
    assert "value" not in parse(drawing)
    assert len(drawing.hover["points"]) == 90


def test_equal_numbers_and_odd_names_are_drawn() -> None:
    same = HeatMap("t", "<unit>", "<x>" * 60, ["<v>" * 60], "y" * 200, ["\u202e" + "w" * 90], {(0, 0): Cell(1e-12)})
    drawing = draw_heat_map(same)
    ElementTree.fromstring(drawing.markup)
    assert "<x>" not in drawing.markup


def test_short_numbers() -> None:
    values = (0.0, 0.00012, 0.12345, 12.3456, 1286.2, 12345.6, 123456.0, 1.5e9)
    shown = ["0", "1.20e-04", "0.1235", "12.35", "1,286", "12,346", "123.5k", "1.5G"]
    assert [short(value) for value in values] == shown
