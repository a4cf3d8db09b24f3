from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.reports.chart import Chart
from paceline.reports.page import Charts, Note, Page, Table
from paceline.reports.run_page import build_run_page
from paceline.telemetry.reader import Row
from paceline.telemetry.run_file import Attempt
from tests.reports.runs import build_facts, window

PLAN = {"kind": "plan", "start_step": 0, "unit": "items", "objective": {"metric": "ndcg_10", "direction": "max"}}


def charts(page: Page) -> dict[str, Chart]:
    parts = [part for section in page.sections for part in section.parts if isinstance(part, Charts)]
    return {chart.title: chart for part in parts for chart in part.charts}


def notes(page: Page) -> str:
    return "\n".join(part.text for section in page.sections for part in section.parts if isinstance(part, Note))


def table(page: Page, title: str, which: int = 0) -> list[dict[str, str]]:
    (section,) = [section for section in page.sections if section.title == title]
    found = [part for part in section.parts if isinstance(part, Table)][which]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def evaluation(step: int, value: float | None, split: str = "validation") -> Row:
    return {
        "attempt": 1,
        "step": step,
        "epoch": 0,
        "samples": 0,
        "split": split,
        "num_samples": 9,
        "ndcg_10": value,
        "time": 0.0,
    }


def test_the_curves_are_those_that_the_table_fills() -> None:
    more = {"lr": 0.1, "data_ms": 1.0, "forward_ms": 2.0, "backward_ms": 4.0, "optimizer_ms": 1.0, "mfu": None}
    page = build_run_page(build_facts([window(step, 100.0, **more) for step in (10, 20)], events=[PLAN]), 50)
    found = charts(page)
    assert list(found) == ["loss", "learning rate", "throughput", "step time", "phases of a step"]
    phases = {series.name: list(series.y) for series in found["phases of a step"].series}
    assert phases["other"] == pytest.approx([2.0, 2.0])  # 10 ms less 1 + 2 + 4 + 1
    assert found["loss"].x_range == (0, 20)


def test_the_best_evaluation_is_marked_by_the_objective() -> None:
    rows = [
        evaluation(1, 0.2),
        evaluation(2, 0.4),
        evaluation(3, math.nan),
        evaluation(4, 0.3),
        evaluation(4, 0.1, "test"),
    ]
    (chart,) = charts(build_run_page(build_facts(validation=rows, events=[PLAN]), 50)).values()
    assert [(series.name, len(series.x)) for series in chart.series] == [("validation", 4), ("test", 1)]
    assert chart.mark is not None
    assert (chart.mark.x, chart.mark.y) == (2, 0.4)
    lower: dict[str, Any] = PLAN | {"objective": {"metric": "ndcg_10", "direction": "min"}}
    (chart,) = charts(build_run_page(build_facts(validation=rows, events=[lower]), 50)).values()
    assert chart.mark is not None
    assert chart.mark.x == 1


def test_the_traffic_of_tables_is_told_beside_that_of_dense_gradients() -> None:
    told = {
        "kind": "tables",
        "attempt": 1,
        "step": 40,
        "steps": 40,
        "rows": 812.5,
        "share": 0.125,
        "bytes": 2 << 20,
        "dense_bytes": 6 << 30,
    }
    found = notes(build_run_page(build_facts([window(10, 100.0)], events=[PLAN, told]), 15))
    assert "812.50 rows" in found
    assert "12.5%" in found
    assert "2.0 MiB" in found
    assert "6.0 GiB" in found
    assert "tables" not in notes(build_run_page(build_facts([window(10, 100.0)], events=[PLAN]), 15))


def test_throughput_has_its_evidence() -> None:
    page = build_run_page(build_facts([window(step, 100.0) for step in (10, 20, 30, 40)], events=[PLAN]), 15)
    rate, time = table(page, "Throughput of the last 15 steps")
    assert (rate["quantity"], rate["mean"], rate["standard deviation"]) == ("samples/s", "100.00", "0")
    assert (rate["count"], rate["from"]) == ("2 windows, 20 steps", "metrics.csv, steps 21 to 40 of attempt 1")
    assert (time["quantity"], time["mean"], time["count"]) == ("ms per step", "10.000", "20 steps")
    assert "whole windows are counted" in notes(page)
    assert "Left out: the first window of attempt 1 (steps 1 to 10)" in notes(page)


def test_attempts_say_what_else_trained_them() -> None:
    softwares = ({}, {"torch": "2.12.1"}, {"torch": "2.12.1"}, {"torch": "2.13.0"})
    attempts = [
        Attempt(number, 2, 7, 1e9, "", [], "stopped", software=dict(software))
        for number, software in enumerate(softwares, 1)
    ]
    page = build_run_page(build_facts([window(10)], events=[PLAN], attempts=attempts), 50)
    assert table(page, "Attempts", 1) == [{"attempt": "4", "changed": "torch: 2.12.1 → 2.13.0"}]


def test_attempts_say_where_they_went_on() -> None:
    attempts = [
        Attempt(1, 2, 7, 1e9, "", [], "running", "", None, None, None),
        Attempt(2, 4, 8, 1e9 + 60, "", [], "finished", "length", 40, 0, 1e9 + 100, ["launch.nproc: 2 → 4"]),
    ]
    events = [
        PLAN,
        {"kind": "checkpoint", "step": 17},
        {"kind": "resume", "attempt": 2, "checkpoint": "/a/b/checkpoints/step_00000010"},
        PLAN | {"attempt": 2, "start_step": 10},
    ]
    page = build_run_page(build_facts([window(10), window(40, attempt=2)], events=events, attempts=attempts), 50)
    first, second = table(page, "Attempts")
    assert (first["from step"], first["to step"], first["why"]) == ("0", "at least 17", "its launcher was killed")
    assert (second["from step"], second["to step"], second["went on from"]) == ("10", "40", "step_00000010")
    assert table(page, "Attempts", 1) == [{"attempt": "2", "changed": "launch.nproc: 2 → 4"}]
    assert dict(page.facts)["ranks"] == "2, then 4"
    assert charts(page)["loss"].borders == [10]


@pytest.mark.parametrize(
    ("is_owned", "says", "tone"),
    [
        (True, "still running, at step 33 by its heartbeats", "plain"),
        (False, "its launcher was killed", "bad"),
        (None, "as run.json says", "plain"),
    ],
)
def test_a_run_without_an_end(is_owned: bool | None, says: str, tone: str) -> None:
    beats = [
        {"rank": 0, "attempt": 1, "step": 33, "phase": "data", "step_ms": {"p50": 7.0}, "wait_ms": 0.5, "time": 1e9}
    ]
    attempt = Attempt(1, 2, 7, 1e9, "", ["paceline"])
    page = build_run_page(build_facts(state="running", is_owned=is_owned, beats=beats, attempts=[attempt]), 50)
    assert says in page.subtitle
    assert page.tone == tone
    facts = build_facts(state="running", is_owned=is_owned, beats=beats, attempts=[attempt])
    facts.run.run.recipe = "sdk"
    foreign = build_run_page(facts, 50)
    assert ("the process ended without a word (killed, or os._exit)" in foreign.subtitle) == (is_owned is False)
    assert ("without a word" in table(foreign, "Attempts")[0]["why"]) == (is_owned is False)
    (rank,) = table(page, "Ranks")
    assert (rank["step"], rank["step p50 ms"], rank["step p90 ms"], rank["wait ms"]) == ("33", "7.0000", "?", "0.50000")
    assert "There is no result" in notes(page)


@pytest.mark.parametrize(
    ("beaten", "logged", "evaluated", "says"),
    [
        (0, 20, 10, "at step 20 by metrics.csv"),
        (0, 10, 20, "at step 20 by validation.csv"),
        (21, 20, 20, "21 by its heartbeats"),
    ],
)
def test_a_running_run_is_where_the_newest_word_says(beaten: int, logged: int, evaluated: int, says: str) -> None:
    beats = [{"rank": 0, "attempt": 1, "step": beaten}, {"rank": 1, "attempt": 0, "step": 90}]
    facts = build_facts(
        [window(logged)], [evaluation(evaluated, 0.5)], state="running", is_owned=True, beats=beats,
        attempts=[Attempt(1, 2, 7, 1e9, "", ["paceline"])],
    )  # fmt: skip
    assert says in build_run_page(facts, 50).subtitle


def test_a_failure_says_what_where_and_what_to_do() -> None:
    problem = {"what": "the loss is not a number", "where": "step 2", "do": "lower train.optimizer.lr"}
    failure = {"kind": "failure", "error": "NonFiniteError", "problems": [problem], "traceback": "Traceback …"}
    page = build_run_page(
        build_facts(events=[failure, failure | {"secondary": True, "error": "RankLostError"}], state="failed"), 50
    )
    assert page.tone == "bad"
    assert "NonFiniteError: the loss is not a number; where: step 2; do: lower train.optimizer.lr" in notes(page)
    assert "RankLostError" not in notes(page)
    assert [row["kind"] for row in table(page, "Warnings and events")] == ["failure", "failure"]


def test_settings_that_were_changed_come_first() -> None:
    origins = {"train.epochs": "override 'train.epochs=3'", "train.seed": "default"}
    page = build_run_page(build_facts(settings={"train.seed": 0, "train.epochs": 3}, origins=origins), 50)
    assert table(page, "Configuration") == [
        {"key": "train.epochs", "value": "3", "origin": "override 'train.epochs=3'"}
    ]
    assert [row["key"] for row in table(page, "Configuration", 1)] == ["train.seed"]


def test_choices_of_several_attempts_are_told_once() -> None:
    choice = {"kind": "choice", "about": "device", "requested": "auto", "effective": "cpu", "reason": "no GPU here"}
    attempts = [Attempt(number, 1, 7, 1e9, "", [], "finished", "length", 5, 0, 1e9) for number in (1, 2)]
    page = build_run_page(build_facts(events=[choice, choice | {"attempt": 2}], attempts=attempts), 50)
    (row,) = table(page, "Choices")
    assert (row["effective"], row["attempts"]) == ("cpu", "1, 2")


def test_many_events_are_cut_and_said_to_be() -> None:
    page = build_run_page(build_facts(events=[{"kind": "evaluation", "step": step} for step in range(1500)]), 50)
    (section,) = [section for section in page.sections if section.title == "Warnings and events"]
    (events,) = [part for part in section.parts if isinstance(part, Table)]
    assert len(events.rows) == 1000
    assert "1,500 events (1,500 evaluation); the last 1,000 are here, all are in events.jsonl" in events.caption
