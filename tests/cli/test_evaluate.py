from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import evaluate
from paceline.cli.main import run_command
from paceline.files import write_json
from paceline.telemetry.layout import RunLayout
from tests.saved_runs import RUN_ID, content_of, log_validation, save_run

ANSWER = {
    "checkpoint": "runs/a/checkpoints/step_00000003",
    "step": 3,
    "run_id": RUN_ID,
    "note": "",
    "device": "cpu",
    "precision": "fp32",
    "splits": [
        {"split": "validation", "num_samples": 7, "metrics": {"hr_10": 0.1 + 0.2, "ndcg_10": 0.25}},
        {"split": "test", "num_samples": 7, "metrics": {"hr_10": float("nan"), "ndcg_10": 0.75}},
    ],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What the worker was asked, and in which environment; it answers ANSWER."""
    calls: list[tuple[list[str], dict[str, str]]] = []

    def ask_worker(arguments: list[str], *, environment: dict[str, str]) -> dict[str, Any]:
        calls.append((list(arguments), dict(environment)))
        return ANSWER

    monkeypatch.setattr(evaluate, "ask_worker", ask_worker)
    return calls


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = save_run(tmp_path / "run", best=3)
    log_validation(
        layout,
        {"step": 3, "split": "validation", "num_samples": 7, "hr_10": 0.30000000000000004, "ndcg_10": 0.2500000001},
        {"step": 6, "split": "test", "num_samples": 7, "hr_10": 0.5, "ndcg_10": 0.75},
    )
    return layout


def test_a_worker_reproduces_what_was_logged_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real worker; what it finds the first time stands for what the run logged."""
    monkeypatch.setenv("COLUMNS", "160")
    layout = save_run(tmp_path / "run", best=3)
    assert run_command(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["equal"] for row in rows} == {None}
    for split in ("validation", "test"):
        metrics = {row["metric"]: row["value"] for row in rows if row["split"] == split}
        log_validation(layout, {"step": 3, "split": split, "num_samples": 153} | metrics)
    before = content_of(tmp_path)
    assert run_command(["evaluate", str(tmp_path / "run"), "--checkpoint", "best"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" yes ") == len(rows) >= 4
    assert "step 3" in shown
    assert content_of(tmp_path) == before


def test_the_recorded_conditions_are_asked_for(layout: RunLayout, asked: list[Any]) -> None:
    assert run_command(["evaluate", str(layout.root), "--checkpoint", "final"]) == 0
    ((arguments, environment),) = asked
    words = ["--checkpoint", "final", "--device", "cpu", "--precision", "fp32"]
    assert arguments == ["paceline.worker.model", "evaluate", str(layout.root), *words]
    assert environment == {"OMP_NUM_THREADS": "1"}


def test_the_threads_under_another_launcher(layout: RunLayout, asked: list[Any]) -> None:
    layout.events.unlink()
    assert run_command(["evaluate", str(layout.root)]) == 0
    write_json(layout.environment, {"v": 1, "environment": {"OMP_NUM_THREADS": "3"}})
    assert run_command(["evaluate", str(layout.root)]) == 0
    assert [environment for _, environment in asked] == [{}, {"OMP_NUM_THREADS": "3"}]
    assert asked[0][0][-2:] == ["--device", "auto"]


def test_every_value_stands_beside_the_logged_one(
    layout: RunLayout, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["evaluate", str(layout.root), "--json"]) == 0
    record = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (record["step"], record["checkpoint"]) == (3, ANSWER["checkpoint"])
    assert [(row["split"], row["metric"], row["value"], row["logged"], row["equal"]) for row in record["rows"]] == [
        ("validation", "hr_10", 0.30000000000000004, 0.30000000000000004, True),
        ("validation", "ndcg_10", 0.25, 0.2500000001, False),
        ("test", "hr_10", None, None, None),
        ("test", "ndcg_10", 0.75, None, None),
    ]


def test_the_table(
    layout: RunLayout, asked: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setitem(ANSWER, "device", "cuda")
    monkeypatch.setitem(ANSWER["splits"][0], "num_samples", 5)
    assert run_command(["evaluate", str(layout.root)]) == 0
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "the run was on cpu, this is cuda: the last digits may differ" in lines
    assert "│ validation │ ndcg_10 │ 0.25 │ 0.2500000001 │ no (5 samples now, 7 then) │" in lines
    assert "│ test │ ndcg_10 │ 0.75 │ │ │" in lines


def test_what_another_run_logged_is_not_compared(
    layout: RunLayout, asked: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWER, "run_id", "another")
    assert run_command(["evaluate", str(layout.root), "--json"]) == 0
    assert {row["equal"] for row in json.loads(capsys.readouterr().out)["rows"]} == {None}


def test_what_is_no_run_is_said_without_a_worker(
    tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["evaluate", str(tmp_path / "nowhere")]) == 2
    assert "not a run directory" in capsys.readouterr().err
    write_json(tmp_path / "run.json", {"v": 99})
    assert run_command(["evaluate", str(tmp_path)]) == 2
    assert "newer" in capsys.readouterr().err

    def refuse(root: Path) -> None:
        raise PermissionError(13, "Permission denied", str(root))

    monkeypatch.setattr(evaluate, "read_run", refuse)
    assert run_command(["evaluate", str(tmp_path)]) == 2
    assert "Permission denied" in capsys.readouterr().err
    assert asked == []


def test_an_old_run_without_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", steps=())
    assert run_command(["evaluate", str(tmp_path / "run")]) == 2
    assert "UsageError: this run has no checkpoint" in capsys.readouterr().err
