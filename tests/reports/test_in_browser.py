"""The page as a browser shows it: a silent console, no request, nothing on top of anything else, wide and narrow, light and dark."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.tables import read_table
from tests.browser import Browser, find_browser
from tests.long_run import SPIKE, build_long_run
from tests.reports.looks import OVERLAPS, PARTS, check_looks
from tests.reports.runs import copy_example

pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (apt-get install chromium)"),
    pytest.mark.timeout(100),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports about a plain run, one without finite losses, one of a single row, one without rows, and a long one."""
    place = tmp_path_factory.mktemp("runs")
    layouts = {name: copy_example(place / name) for name in ("plain", "nan", "one", "empty")}
    layouts["long"] = build_long_run(place / "long", steps=4000)
    header, *rows = layouts["plain"].metrics.read_text().splitlines()
    column = header.split(",").index("loss")
    lost = [",".join("nan" if place == column else cell for place, cell in enumerate(row.split(","))) for row in rows]
    layouts["nan"].metrics.write_text("\n".join([header, *lost]) + "\n")
    layouts["one"].metrics.write_text(f"{header}\n{rows[-1]}\n")
    layouts["empty"].metrics.unlink()
    for layout in layouts.values():
        assert run_command(["report", str(layout.root)]) == 0
    return {name: layout.report_page for name, layout in layouts.items()}


@pytest.mark.parametrize("width", [390, 1280, 2000])
@pytest.mark.parametrize("name", ["plain", "nan", "one", "empty", "long"])
def test_nothing_is_said_asked_for_or_on_top_of_another(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    check_looks(browser, pages[name], width)
    assert browser.value("document.querySelectorAll('figure.chart').length") == {"empty": 4, "long": 12}.get(name, 12)


def test_an_overlap_would_be_seen(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["plain"])
    browser.value(
        "document.querySelectorAll('figure.chart > svg text').forEach((text) => text.setAttribute('x', 20)), 0"
    )
    assert browser.value(OVERLAPS) != []
    browser.value("document.querySelectorAll('.legend').forEach((legend) => legend.style.marginTop = '-20px'), 0")
    assert browser.value(PARTS) != []
    browser.value("console.error('seen'), fetch('http://127.0.0.1:9/x').catch(() => 0)")
    assert any("seen" in said for said in browser.complaints)
    assert any("Content Security Policy" in said for said in browser.complaints)


def test_the_dark_scheme_is_dark(browser: Browser, pages: dict[str, Path]) -> None:
    lightness = []
    for dark in (False, True):
        browser.open(pages["plain"], dark=dark)
        for selector in ("body", "figure.chart text"):
            name = "backgroundColor" if selector == "body" else "fill"
            colour = browser.value(f"getComputedStyle(document.querySelector('{selector}')).{name}")
            lightness.append(sum(int(part) for part in colour[4:-1].split(",")) / 3)
    paper, ink, dark_paper, dark_ink = lightness
    assert paper - ink > 100
    assert dark_ink - dark_paper > 100


def test_a_pointer_is_told_the_values_and_nothing_moves(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["long"])
    browser.value("scrollTo(0, document.querySelector('figure.chart').offsetTop - 20), 0")
    height = browser.value("document.documentElement.scrollHeight")
    line = "document.querySelector('figure.chart > svg')"
    place = browser.value(
        f"(() => {{ const box = {line}.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; }})()"
    )
    left, top, across, down = place
    for share in range(
        55, 65
    ):  # the spike is at six tenths of the steps; the axis begins a little to the right of the drawing
        browser.point_at(left + across * (share + 2) / 100, top + down * 0.14)
        said = browser.value("document.querySelector('figure.chart .hover').textContent")
        if f": {SPIKE:.0f} " in said:
            break
    assert said.startswith("step 2,400: 80 ")
    assert browser.value("document.querySelector('figure.chart .hover').hidden") is False
    assert browser.value("document.documentElement.scrollHeight") == height
    assert browser.complaints == []


def test_the_drawn_curve_is_the_table(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["plain"])
    curve = browser.value("JSON.parse(document.querySelector('figure.chart script').textContent).curves[0]")
    rows = [row for row in read_table(RunLayout(pages["plain"].parent).metrics) if row["attempt"] == 2]
    assert curve[1] == [row["step"] for row in rows]
    assert all(math.isclose(shown, row["loss"], rel_tol=1e-5) for shown, row in zip(curve[2], rows, strict=True))
