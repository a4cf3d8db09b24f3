from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.reports.html import render_html
from paceline.reports.lanes import Lanes
from paceline.reports.markdown import render_markdown
from paceline.reports.page import Charts, Link, Listing, Note, Page, Section, Table
from paceline.reports.playbook_facts import build_playbook_facts
from paceline.reports.playbook_page import build_playbook_page
from tests.reports.plays import build_play, phase, save_play

HOSTILE = "<script>alert(1)</script> | `x` *y*"


def build(root: Path = Path("plays/a"), is_owned: bool | None = None, **more: Any) -> Page:
    facts = build_playbook_facts(root, build_play() | more, is_owned)
    page = build_playbook_page(facts, root)
    assert render_html(page)
    assert render_markdown(page)
    return page


def section(page: Page, title: str) -> Section:
    return next(section for section in page.sections if section.title == title)


def tables(found: Section) -> dict[str, list[dict[str, str | Link]]]:
    parts = [part for part in found.parts if isinstance(part, Table)]
    return {part.caption: [dict(zip(part.columns, row, strict=True)) for row in part.rows] for part in parts}


def test_each_phase_has_its_command_its_verdict_and_its_evidence(tmp_path: Path) -> None:
    page = build(save_play(tmp_path / "play", build_play()))
    assert (page.tone, page.title) == ("bad", "p0-p3 (playbook)")
    assert page.subtitle == "gate not met: P2: samples_per_s >= 0.92 * baseline.samples_per_s is not met"
    assert [each.title for each in page.sections] == [
        "Phases",
        "P0: train",
        "P1: sweep",
        "P2: train",
        "P3: export",
        "Machine",
    ]
    overview = tables(page.sections[0])[""]
    assert [(row["state"], row["gate"]) for row in overview] == [
        ("done", "met"),
        ("done", "none"),
        ("gate not met", "1 of 2 met"),
        ("waiting", "none"),
    ]
    smoke = section(page, "P0: train")
    assert Note("done", "good") in smoke.parts
    found = tables(smoke)
    assert found[""][0]["value"] == "paceline train sasrec data.max_users=200 --out P0/run"
    assert found["evidence"] == [{"what": "loss", "value": "4.1203", "from": "P0/run/metrics.csv, step 200"}]
    assert found["gate"] == [{"condition": "failures == 0", "verdict": "met", "values": "failures = 0"}]
    assert found["what it left"] == [{"what": "run", "where": Link("P0/run", "./P0/run/")}]
    screen = tables(section(page, "P1: sweep"))
    assert {"what": "attempts", "value": "2 attempts"} in screen[""]
    assert [row["where"] for row in screen["what it left"]] == [
        Link("P1/sweep", "./P1/sweep/"),
        "P1/sweep/best.yaml (gone)",
    ]


def test_what_was_not_met_is_told_with_its_values_and_what_was_used() -> None:
    found = section(build(), "P2: train")
    assert Note("gate not met: 1 of 2 conditions does not hold", "bad") in found.parts
    gate = tables(found)["gate"][1]
    assert gate["values"] == "samples_per_s = 812.50, baseline.samples_per_s = not measured"
    assert gate["why"] == "default below compute capability 8"
    (used,) = tables(found)["taken from earlier phases"]
    assert used == {
        "key": "model.blocks",
        "value": "2",
        "from": "P1.best",
        "file": "P1/sweep/best.yaml",
        "given by hand instead": "3",
    }
    (tail,) = [part for part in found.parts if isinstance(part, Listing)]
    assert "<b>ZeroDivisionError</b>" in tail.text


def test_a_link_prefers_the_report_of_what_it_leads_to(tmp_path: Path) -> None:
    root = save_play(tmp_path / "play", build_play())
    (root / "P1" / "sweep" / "report.html").touch()
    found = tables(section(build(root), "P1: sweep"))["what it left"]
    assert found[0]["where"] == Link("P1/sweep", "./P1/sweep/report.html")


def test_the_time_of_each_phase_is_drawn() -> None:
    (charts,) = [part for part in build().sections[0].parts if isinstance(part, Charts)]
    (lanes,) = charts.charts
    assert isinstance(lanes, Lanes)
    assert [(lane.name, lane.spans[0].high, lane.colour) for lane in lanes.lanes] == [
        ("P0: train", 31.0, 2),
        ("P1: sweep", 95.5, 2),
        ("P2: train", 61.0, 5),
    ]


@pytest.mark.parametrize(
    ("is_owned", "says"),
    [
        (True, "still running"),
        (None, "running, as playbook.json says"),
        (False, "interrupted: no process runs it any more"),
    ],
)
def test_one_that_has_no_end_says_so(is_owned: bool | None, says: str) -> None:
    assert build(is_owned=is_owned, state="running", reason="").subtitle.startswith(says)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [None, 3, {}], [phase("", "", "")]])
def test_whatever_is_missing_or_strange_still_makes_a_page(value: Any) -> None:
    build(phases=value)
    for name in ("gate", "evidence", "uses", "links", "settings", "results", "tail", "seconds", "command", "attempts"):
        build(phases=[phase("P0", "train", "done", **{name: value})], machine=value, argv=value, created=value)


def test_one_gate_and_plain_evidence_are_understood_too() -> None:
    given = {"gate": {"text": "a > 1", "verdict": "met", "values": {"a": 2}}, "evidence": {"loss": 3.5}}
    found = tables(section(build(phases=[phase("P0", "check", "done", **given)]), "P0: check"))
    assert found["gate"][0]["condition"] == "a > 1"
    assert found["evidence"] == [{"what": "loss", "value": "3.5", "from": ""}]


def test_nothing_in_it_is_taken_for_markup() -> None:
    given = {"about": HOSTILE, "command": HOSTILE, "reason": HOSTILE, "tail": [HOSTILE], "links": {HOSTILE: HOSTILE}}
    page = build(name=HOSTILE, phases=[phase(HOSTILE, HOSTILE, HOSTILE, **given)] * 2, reason=HOSTILE)
    html, markdown = render_html(page), render_markdown(page)
    assert "<script>alert" not in html
    assert all("<script" not in line for line in markdown.splitlines() if not line.startswith("    "))


def test_what_was_accepted_comes_first_and_claims_no_more_than_was_judged() -> None:
    table = {"caption": "acceptance", "columns": ["phase", "verdict"], "rows": [["baseline", "not judged"], ["broken"]]}
    judged = phase("acceptance", "accept", "done") | {"tables": [table]}
    gate = [{"text": "pace >= limits.pace", "verdict": "not judged", "values": {}, "why": "nobody has set it"}]
    first = phase("baseline", "train", "done") | {"gate": gate, "remedy": ["paceline triage run"]}
    shown = {
        "state": "done",
        "reason": "",
        "verdict": "passed what was judged; 1 not judged",
        "phases": [first, judged],
    }
    page = build(**shown)
    assert (page.subtitle, page.tone) == ("done: passed what was judged; 1 not judged", "warning")
    assert page.sections[0].title == "Acceptance"
    # A row that is not whole is left out, and the table is there once.
    assert tables(page.sections[0])["acceptance"] == [{"phase": "baseline", "verdict": "not judged"}]
    assert "acceptance" not in tables(section(page, "acceptance: accept"))
    assert tables(page.sections[1])[""][0]["gate"] == "0 of 1 met, 1 not judged"
    assert tables(section(page, "baseline: train"))["what to do"] == [{"type next": "paceline triage run"}]
    assert build(**shown | {"verdict": "passed"}).tone == "good"
    failed = build(**shown | {"state": "failed", "verdict": "failed: 1 of 2 not met (baseline)"})
    assert (failed.subtitle, failed.tone) == ("failed: 1 of 2 not met (baseline)", "bad")
