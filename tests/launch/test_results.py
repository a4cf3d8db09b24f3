from __future__ import annotations

from pathlib import Path

import pytest

from paceline.launch.results import result_rows, results_table
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import Row, Run
from paceline.telemetry.run_file import Attempt, RunFile
from tests.launch.saved import save_checkpoint


def build_run(metrics: list[Row], events: list[Row], root: Path = Path("runs/a")) -> Run:
    attempts = [Attempt(1, 2, 1, 0.0, "", []), Attempt(2, 2, 1, 100.0, "", [], state="finished", ended=130.5)]
    run = RunFile("id", "toy", "", "0", 0, {}, state="finished", attempts=attempts)
    return Run(RunLayout(root), run, metrics, [], [{"attempt": 2} | event for event in events])


def window(step: int, loss: float, rate: float | None, attempt: int = 2) -> Row:
    return {"attempt": attempt, "step": step, "loss": loss, "samples_per_s": rate}


def evaluation(split: str, step: int, value: float) -> Row:
    return {"kind": "evaluation", "split": split, "step": step, "num_samples": 50, "metrics": {"ndcg_10": value}}


def test_pace_without_the_first_window_and_with_its_evidence() -> None:
    metrics = [window(9, 9.0, 1.0, attempt=1), *[window(10 * i, 5.0 - i, 10.0 * i**2) for i in range(1, 5)]]
    rows = {name: (value, evidence) for name, value, evidence in result_rows(build_run(metrics, []))}
    assert rows["loss"] == ("1.0000", "metrics.csv, step 40")
    assert rows["samples/s"] == ("90", "metrics.csv, median of 3 windows, 40 to 160")
    assert rows["duration"] == ("30.5 s", "run.json, 2 ranks, start-up included, attempt 2")


def test_a_baseline_stands_beside_the_metric_that_must_beat_it() -> None:
    baseline = {"kind": "baseline", "split": "test", "name": "popularity", "metrics": {"ndcg_10": 0.1}}
    for count, evidence in (({"num_samples": 2000}, "2,000 samples"), ({}, "events.jsonl")):
        rows = result_rows(build_run([], [evaluation("test", 40, 0.15), baseline | count]))
        assert rows[:-1] == [
            ("test ndcg_10", "0.1500", "validation.csv, step 40, 50 samples"),
            ("popularity test ndcg_10", "0.1000", evidence),
        ]


@pytest.mark.parametrize(("direction", "best"), [("max", "0.3000"), ("min", "0.1000")])
def test_the_best_evaluation_follows_the_objective(direction: str, best: str) -> None:
    events = [
        {"kind": "plan", "objective": {"metric": "ndcg_10", "direction": direction}},
        evaluation("validation", 10, 0.1),
        evaluation("validation", 20, 0.3),
        evaluation("validation", 30, float("nan")),
        evaluation("validation", 40, 0.2),
        evaluation("test", 40, 0.15),
    ]
    rows = [(name, value) for name, value, _ in result_rows(build_run([], events))]
    assert rows[:-1] == [
        ("best validation ndcg_10", best),
        ("validation ndcg_10", "0.2000"),
        ("test ndcg_10", "0.1500"),
    ]


def test_attempts_are_joined_where_the_later_one_went_on() -> None:
    objective = {"metric": "ndcg_10", "direction": "max"}
    first = [
        {"kind": "plan", "start_step": 0, "objective": objective},
        evaluation("validation", 10, 0.4),
        evaluation("validation", 15, 0.9),  # trained again, and not evaluated there again
    ]
    second = [{"kind": "plan", "start_step": 10, "objective": objective}, evaluation("validation", 20, 0.2)]
    run = build_run([window(10, 5.0, 7.0, attempt=1)], [*({"attempt": 1} | event for event in first), *second])
    rows = {name: (value, evidence) for name, value, evidence in result_rows(run)}
    assert rows["best validation ndcg_10"] == ("0.4000", "validation.csv, step 10, 50 samples")
    assert rows["validation ndcg_10"] == ("0.2000", "validation.csv, step 20, 50 samples")
    assert rows["loss"] == ("5.0000", "metrics.csv, step 10")  # the second attempt has no window yet
    assert rows["samples/s"][0] == "7"
    assert results_table(run, "finished").title == "toy: finished (2 attempts)"


def test_checkpoints_are_named_with_their_step(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1500)
    (tmp_path / "checkpoints" / "final").symlink_to("step_00001500")
    (tmp_path / "checkpoints" / "best").symlink_to("step_00000900")  # gone
    rows = result_rows(build_run([], [], tmp_path))
    assert rows[0] == ("final checkpoint", "step 1,500", "checkpoints/final")
    assert [row[0] for row in rows] == ["final checkpoint", "duration"]


def test_a_run_that_got_nowhere_has_no_results() -> None:
    assert results_table(build_run([], []), "failed").row_count == 0


def test_what_a_foreign_loop_leaves_out_does_not_matter() -> None:
    events = [
        {"kind": "plan", "objective": {"metric": "ndcg_10", "direction": "max"}},
        {
            "kind": "evaluation",
            "split": "validation",
            "step": 5,
            "metrics": {"ndcg_10": None},
        },  # not finite: null in JSON
        {"kind": "evaluation", "split": "validation", "step": 6, "metrics": {"ndcg_10": 0.5}},
        {"kind": "evaluation", "split": ["x"], "step": 7, "metrics": {"ndcg_10": 0.9}},
        {"kind": "evaluation", "split": "validation", "step": 8, "metrics": {"ndcg_10": 0.25}, "num_samples": "many"},
        {"kind": "evaluation", "step": 9},
        {"kind": "baseline", "split": "test", "metrics": {"ndcg_10": 0.1}, "num_samples": None},
        {"kind": "baseline"},
    ]
    run = build_run([{"attempt": 2, "step": 3}], events)
    run.run.attempts.clear()
    assert [(name, value) for name, value, _ in result_rows(run)] == [
        ("loss", "?"),
        ("samples/s", "?"),
        ("best validation ndcg_10", "0.5000"),
        ("validation ndcg_10", "0.2500"),
        ("baseline test ndcg_10", "0.1000"),
    ]


def test_a_metric_that_is_no_number_is_shown_as_the_table_has_it() -> None:
    run = build_run([], [evaluation("test", 40, 0.1) | {"metrics": {"ndcg_10": None, "auc": None}}])
    run.validation.append({"attempt": 2, "step": 40, "split": "test", "ndcg_10": float("nan")})
    rows = {name: value for name, value, _ in result_rows(run)}
    assert rows["test ndcg_10"] == "nan"
    assert rows["test auc"] == "?"
