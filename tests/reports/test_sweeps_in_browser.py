"""Pages of sweeps and playbooks as a browser shows them: whatever the cases are called, however many they are, and however it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import run_command
from tests.browser import Browser, find_browser
from tests.reports.looks import OVERLAPS, check_looks
from tests.reports.plays import build_play, save_play
from tests.reports.sweeps import build_sweep, save_sweep

pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (apt-get install chromium)"),
    pytest.mark.timeout(100),
]

HOSTILE: list[Any] = [
    "<script>console.error('ran')</script>",
    "</script><img src=x onerror=console.error(1)>",
    "x" * 400,
    "漢字かな交じり" * 12,
    "\u202eright to left \x00\x07",
    "مرحبا بالعالم",
    "🚴🏽‍♀️" * 9,
    "a|b*c`d`&amp;\n# e",
    True,
    None,
    {"a": [1, 2]},
    -1e-300,
]
"""values of an axis"""


def all_failed() -> dict[str, Any]:
    record = build_sweep({"a.b": [1, 2, 3]}, 2, state="failed", reason="every case failed")
    for case in record["cases"]:
        case |= {"verdict": "failed", "value": None, "low": None, "high": None}
    for trial in record["trials"]:
        trial |= {
            "status": "failed",
            "samples_per_s": None,
            "windows": [],
            "losses": [],
            "step_ms_p50": None,
            "step_ms_p90": None,
        }
    return record


def partial() -> dict[str, Any]:
    record = build_sweep(state="running")
    record["trials"] = record["trials"][:7]
    known = {trial["case"] for trial in record["trials"]}
    for case in record["cases"]:
        case["verdict"] = "undecided"
        if case["name"] not in known:
            case |= {"value": None, "low": None, "high": None}
    return record | {"history": record["history"][:7]}


SWEEPS = {
    "full": lambda: build_sweep(),
    "hostile": lambda: build_sweep({HOSTILE[0]: HOSTILE, "y" * 200: [1, 2]}, 2),
    "sixty": lambda: build_sweep({"parallel.bucket_mb": list(range(20)), "params.batch": [64, 128, 256]}, 1),
    "two": lambda: build_sweep({"parallel.bucket_mb": [25, 50]}, 3),
    "one": lambda: build_sweep({"parallel.bucket_mb": [25]}, 1),
    "empty": lambda: build_sweep({}, 0) | {"cases": [], "trials": [], "axes": [], "baseline": None},
    "failed": all_failed,
    "partial": partial,
}
CHARTS = {"full": 10, "hostile": 8, "sixty": 8, "two": 7, "one": 6, "empty": 0, "failed": 2, "partial": 9}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("sweeps")
    roots = {name: save_sweep(place / name, build()) for name, build in SWEEPS.items()}
    roots["play"] = save_play(place / "play", build_play())
    for root in roots.values():
        assert run_command(["report", str(root)]) == 0
    return {name: root / "report.html" for name, root in roots.items()}


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, width) for name in [*SWEEPS, "play"] for width in (390, 1280)] + [("full", 2000), ("hostile", 2000)],
)
def test_nothing_is_said_asked_for_or_on_top_of_another(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    check_looks(browser, pages[name], width, dark=width == 1280)
    assert browser.value("document.querySelectorAll('figure.chart').length") == CHARTS.get(name, 1)


def test_an_overlap_of_lanes_would_be_seen(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    browser.value(
        "document.querySelectorAll('figure.chart > svg .aside').forEach((text) => text.setAttribute('x', 150)), 0"
    )
    assert browser.value(OVERLAPS) != []


def test_the_page_of_thirty_six_cases_and_five_repeats_stays_small(browser: Browser, pages: dict[str, Path]) -> None:
    """What it takes to open is not for a test to time; what is in it is."""
    browser.open(pages["full"])
    assert browser.value("document.querySelectorAll('*').length") < 15_000
    assert pages["full"].stat().st_size < 500_000


def test_a_pointer_is_told_the_nearest_mark(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    for title, says in (("ranking", "(1,"), ("parallel.bucket_mb and parallel.compression", " samples/s")):
        figure = f"[...document.querySelectorAll('figure.chart')].find((f) => f.querySelector('figcaption').textContent === '{title}')"
        browser.value(f"{figure}.scrollIntoView(), 0")
        x, y, text = browser.value(f"JSON.parse({figure}.querySelector('script').textContent).points[0]")
        left, top = browser.value(
            f"(() => {{ const svg = {figure}.querySelector(':scope > svg'), at = new DOMPoint({x}, {y}).matrixTransform(svg.getScreenCTM()); return [at.x, at.y]; }})()"
        )
        browser.point_at(left + 2, top + 2)
        assert browser.value(f"{figure}.querySelector('.hover').textContent") == text
        assert says in text or " to " in text
    assert browser.complaints == []


def test_a_link_leads_to_the_run_directory(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    target = browser.value("document.querySelector('td a').href")
    assert target == (pages["full"].parent / "trials/0001-1-r1").as_uri() + "/"
