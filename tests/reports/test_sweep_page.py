from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from paceline.reports.chart import Chart
from paceline.reports.heat_map import HeatMap
from paceline.reports.html import render_html
from paceline.reports.lanes import Lanes
from paceline.reports.markdown import render_markdown
from paceline.reports.page import Charts, Figure, Link, Note, Page, Table
from paceline.reports.sweep_facts import SweepFacts, build_sweep_facts
from paceline.reports.sweep_page import build_sweep_page
from tests.reports.sweeps import build_sweep

SMALL: dict[str, list[Any]] = {"parallel.bucket_mb": [25, 50, 100], "data.num_workers": [0, 2]}


def read(**more: Any) -> SweepFacts:
    return build_sweep_facts(Path("sweeps/a"), build_sweep(SMALL, 3) | more)


def as_axes(axes: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "values": values} for name, values in axes.items()]


def build(facts: SweepFacts) -> Page:
    page = build_sweep_page(facts, facts.root)
    assert render_markdown(page)
    assert render_html(page)
    return page


def figures(page: Page) -> dict[str, Figure]:
    parts = [part for section in page.sections for part in section.parts if isinstance(part, Charts)]
    return {chart.title: chart for part in parts for chart in part.charts}


def lanes(page: Page, title: str) -> Lanes:
    found = figures(page)[title]
    assert isinstance(found, Lanes)
    return found


def notes(page: Page) -> str:
    return "\n".join(part.text for section in page.sections for part in section.parts if isinstance(part, Note))


def rows(page: Page, title: str) -> list[dict[str, str | Link]]:
    (section,) = [section for section in page.sections if section.title == title]
    (found,) = [part for part in section.parts if isinstance(part, Table)]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def case(name: str, verdict: str, value: float | None = None, **more: Any) -> dict[str, Any]:
    ends = {"low": value * 0.99, "high": value * 1.01} if value is not None else {}
    return {"name": name, "values": {"x": name}, "verdict": verdict, "value": value} | ends | more


def test_the_ranking_has_every_case_with_its_interval_and_marks_baseline_and_ties() -> None:
    facts = read()
    page = build(facts)
    ranking = lanes(page, "ranking")
    assert len(ranking.lanes) == len(facts.cases) == 6
    winner, tied = ranking.lanes[:2]
    assert (winner.aside, winner.colour, winner.dots[0].kind) == ("winner", 2, "point")
    assert (tied.aside, tied.colour, tied.dots[0].kind) == ("tied", 2, "ring")
    assert facts.winner is not None
    value = facts.winner.value("value")
    assert value is not None
    assert (winner.spans[0].low, winner.spans[0].high) == facts.winner.interval
    assert ranking.band == (pytest.approx(value * 0.99), value)
    assert facts.baseline is not None
    assert ranking.lines[0].x == facts.baseline.value("value")
    (marked,) = [lane for lane in ranking.lanes if "baseline" in lane.aside]
    assert facts.baseline.name in marked.name
    (fits_not,) = [lane for lane in ranking.lanes if "does not fit" in lane.aside]
    assert not fits_not.values
    table = rows(page, "Ranking")
    assert [row["verdict"] for row in table][:2] == ["winner", "tied"]
    assert table[0]["trials"] == "3 ok"
    assert str(table[0]["against the baseline"]).startswith("+")


def test_the_result_is_said_first_as_the_sweep_says_it() -> None:
    page = build(read(sentence="b wins with 110 samples/s, +10.0% against the baseline a (100)."))
    first = page.sections[0].parts[0]
    assert first == Note("b wins with 110 samples/s, +10.0% against the baseline a (100).", "good")
    assert "Why: faster than each other case in 3 paired rounds; between " in notes(page)
    assert "does not say what came of it" in notes(build(read(sentence=None)))


def test_a_heat_map_is_a_slice_through_the_winner() -> None:
    facts = build_sweep_facts(Path("sweeps/a"), build_sweep())
    page = build(facts)
    maps = [figure for figure in figures(page).values() if isinstance(figure, HeatMap)]
    assert len(maps) == 3
    assert facts.winner is not None
    for chart in maps:
        others = [axis for axis in facts.axes if axis not in (chart.x_name, chart.y_name)]
        inside = [c for c in facts.cases if all(c.values[axis] == facts.winner.values[axis] for axis in others)]
        assert len(chart.cells) == len(inside) == len(chart.x_values) * len(chart.y_values)
        assert [cell.value for cell in chart.cells.values() if cell.outline == "winner"] == [
            facts.winner.value("value")
        ]
        assert len(chart.y_values) >= len(chart.x_values)
    assert "fixed at the winner's values: parallel.bucket_mb=" in notes(page)
    assert not [
        figure
        for figure in figures(build(read(axes=as_axes({"parallel.bucket_mb": [25, 50, 100]})))).values()
        if isinstance(figure, HeatMap)
    ]


def test_true_is_not_one_in_a_heat_map() -> None:
    cases = [case(f"{a}{b}", "slower", 1.0, values={"a": a, "b": b}) for a in (1, 2) for b in (True, False)]
    (chart,) = [
        f
        for f in figures(build(read(cases=cases, axes=as_axes({"a": [1, 2], "b": [True, 1]})))).values()
        if isinstance(f, HeatMap)
    ]
    assert sorted(chart.cells) == [(0, 0), (0, 1)]
    assert chart.x_values == ["true", "1"]


def test_losses_are_compared_with_the_baseline_at_matched_samples() -> None:
    def trial(name: str, *losses: tuple[int, float | None], status: str = "ok") -> dict[str, Any]:
        return {"case": name, "round": 1, "status": status, "device_s": 1.0, "losses": [list(pair) for pair in losses]}

    cases = [case("b", "winner", 2.0), case("a", "slower", 1.0), case("d", "diverges")]
    trials = [
        trial("a", (100, 4.0), (200, 2.0)),
        trial("b", (100, 4.4), (150, 3.0), (300, 1.0)),
        trial("b", (100, 4.0)),
        trial("d", (100, 8.0), (200, None), status="diverged"),
        trial("b", (100, 99.0), status="failed"),
    ]
    found = figures(build(read(cases=cases, trials=trials, baseline="a", axes=[])))
    loss, apart = found["loss"], found["loss against the baseline"]
    assert isinstance(loss, Chart)
    assert isinstance(apart, Chart)
    assert [series.name for series in loss.series] == ["a (baseline)", "b (winner)", "d (diverges)"]
    assert list(loss.series[1].y) == [pytest.approx(4.2), 3.0, 1.0]
    baseline, winner, diverging, tolerance = apart.series
    assert list(baseline.y) == [0.0, 0.0]
    assert (list(winner.x), list(winner.y)) == ([100, 150], [pytest.approx(5.0), pytest.approx(0.0)])
    assert diverging.y[0] == pytest.approx(100.0)
    assert math.isnan(diverging.y[1] or 0.0)
    assert list(tolerance.y) == [2.0, 2.0]


def test_the_race_is_told_in_device_seconds_against_the_full_grid() -> None:
    facts = read()
    page = build(facts)
    race = lanes(page, "the race")
    spent = sum(trial.value("device_s") or 0.0 for trial in facts.trials)
    assert race.lines[0].x == facts.part("costs")["full_grid_device_s"] > spent
    assert race.x_range is not None
    assert race.x_range[1] > race.lines[0].x
    spans = [span for lane in race.lanes for span in lane.spans]
    assert sum(span.high - span.low for span in spans) == pytest.approx(spent)
    assert max(span.high for span in spans) == pytest.approx(spent)
    decided = [dot for lane in race.lanes for dot in lane.dots if dot.kind == "ring"]
    assert len(decided) == len(facts.cases) == len(rows(page, "Race"))
    assert {row["became"] for row in rows(page, "Race")} >= {"winner", "slower", "does not fit"}
    assert f"so {spent / race.lines[0].x * 100:.0f} % of it was spent" in notes(page)
    plain = read(plan={"racing": False}, history=[], costs={})
    assert "Race" not in [section.title for section in build(plain).sections]


def test_trials_lead_to_their_directories(tmp_path: Path) -> None:
    record = build_sweep(SMALL, 1)
    record["trials"][0]["directory"] = "trials/a b#?&<c>"
    record["trials"][1]["directory"] = "../../etc"
    (tmp_path / "trials" / "a b#?&<c>").mkdir(parents=True)
    facts = build_sweep_facts(tmp_path, record)
    table = rows(build_sweep_page(facts, tmp_path / "elsewhere" / "x"), "Trials")
    assert table[0]["run directory"] == Link("trials/a b#?&<c>", "./../../trials/a%20b%23%3F%26%3Cc%3E/")
    assert table[1]["run directory"] == ""
    assert str(table[2]["run directory"]).endswith(" (gone)")
    assert any("is gone, and" in gap for gap in facts.gaps)


def test_a_partial_sweep_says_so() -> None:
    running = build_sweep(SMALL, 3, state="running")
    running["trials"] = running["trials"][:4]
    for is_owned, says, tone in (
        (True, "still running: 4 trials ended so far", "plain"),
        (None, "running, as sweep.json says: 4 trials ended so far", "plain"),
        (False, "interrupted: no process drives it any more", "warning"),
    ):
        page = build(build_sweep_facts(Path("sweeps/a"), running, is_owned))
        assert page.subtitle.startswith(says)
        assert page.tone == tone


def test_one_trial_has_no_interval_and_what_was_interrupted_no_cost() -> None:
    cases = [case("a", "winner", 2.0) | {"low": 2.0, "high": 2.0}]
    trials = [{"case": "a", "status": "ok", "device_s": 3.0}, {"case": "a", "status": "interrupted"}]
    page = build(read(cases=cases, trials=trials, history=[], costs={}))
    assert not lanes(page, "ranking").lanes[0].spans
    assert not any("interval" in text for _, text in lanes(page, "ranking").legend)
    assert any("interval at 95 % confidence" in text for _, text in lanes(build(read()), "ranking").legend)
    assert (rows(page, "Ranking")[0]["low"], rows(page, "Ranking")[0]["high"]) == ("", "")
    assert "3.0000 device-seconds (3.0 s) in 1 trial, and 1 whose cost is not known." in notes(page)
    assert "between" not in notes(page)


def test_incomplete_and_impossible_cases_are_named_at_the_top() -> None:
    cases = [
        case("a", "winner", 2.0),
        case("b", "slower", 1.5, is_complete=False),
        case("c", "does not fit"),
        case("d", "diverges"),
    ]
    page = build(read(cases=cases, notes=["3 % cannot be resolved with two repeats: power 0.15, it takes 9"]))
    said = notes(page)
    for expected in (
        "does not fit: c.",
        "diverges: d.",
        "Incomplete, a trial of theirs failed: b.",
        "power 0.15, it takes 9",
    ):
        assert expected in said
    assert [row["verdict"] for row in rows(page, "Ranking")][1] == "slower, incomplete"


def test_a_lower_objective_is_said_to_be_better() -> None:
    page = build(read(objective={"name": "step_ms_p50", "unit": "ms", "direction": "min"}))
    ranking = lanes(page, "ranking")
    assert ranking.unit == "ms, lower is better"
    assert ranking.band is not None
    assert ranking.band[0] < ranking.band[1]


@pytest.mark.parametrize("name", ["cases", "trials", "history", "plan", "axes", "objective", "costs", "machine"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [None, 3, {}], {"a": {"b": None}}])
def test_whatever_is_missing_or_strange_still_makes_a_page(name: str, value: Any) -> None:
    facts = read(**{name: value})
    build(facts)
    if name in ("cases", "trials", "history", "axes") and not isinstance(value, list):
        assert f"sweep.json has no list of {name}" in facts.gaps


def test_strange_numbers_are_no_numbers() -> None:
    strange = [
        case("a", "winner", None, low="x", high=None) | {"value": math.inf},
        case("b", "slower") | {"value": True},
    ]
    trials = [
        {
            "case": "a",
            "status": "ok",
            "samples_per_s": "fast",
            "windows": [None, "x", 1.0],
            "losses": [[1], "x", [None, 2]],
        }
    ]
    page = build(read(cases=strange, trials=trials))
    assert "ranking" not in figures(page)
    assert lanes(page, "windows").lanes[0].dots[0].x == 1.0


def test_a_name_that_would_turn_the_line_around_is_tamed_everywhere() -> None:
    name = "a\u202eb\nc"
    trials = [{"case": name, "status": "ok", "samples_per_s": 1.0, "device_s": 2.0}]
    history = [{"case": name, "device_s": 2.0, "decided": [{"case": name, "verdict": "winner"}]}]
    facts = read(
        cases=[case(name, "winner", 1.0)], baseline=name, trials=trials, history=history, sentence=f"{name} wins"
    )
    html = render_html(build(facts))
    assert facts.baseline is facts.winner is not None
    assert facts.trials_of(facts.winner)
    assert not facts.gaps
    assert "a\ufffdb c wins" in html
    assert "\u202e" not in html


def test_many_cases_are_drawn_in_part_and_the_baseline_always() -> None:
    cases = [case(f"c{number}", "slower" if number else "winner", 1000.0 - number) for number in range(200)]
    page = build(read(cases=cases, baseline="c150", trials=[], history=[]))
    ranking = lanes(page, "ranking")
    assert len(ranking.lanes) == 60
    assert "c150" in ranking.lanes[-1].name
    assert "all 200 are in the table" in notes(page)
    assert len(rows(page, "Ranking")) == 200
