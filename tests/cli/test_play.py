"""`paceline play` as a command: flags, refusals, exit codes; what it runs is in tests/playbook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.playbook import runner
from tests.playbook.conftest import SMALL, Inside


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(runner, "Child", Inside)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls.jsonl"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.yaml").write_text(SMALL)
    return "book.yaml"


def test_it_ends_with_where_each_phase_stands_and_the_page(
    book: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["play", book]) == 0
    shown = capsys.readouterr().out
    assert "book: done" in shown
    page = tmp_path / "runs" / "book" / "report.html"
    assert shown.endswith(f"report: {page}\n")
    assert page.exists()
    assert run_command(["play", book, "P2.gate=final_loss < 1"]) == 6
    shown = capsys.readouterr()
    assert "gate not met" in shown.out
    assert "GateError: P2: `final_loss < 1` is not met (final_loss = 3.5)" in shown.err
    assert "Traceback" not in shown.err


def test_a_dry_run_starts_and_writes_nothing(book: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["play", book, "--dry-run", "--from", "P1", "train.epochs=2"]) == 0
    shown = capsys.readouterr().out
    assert "skipped   not asked for (--from P1)" in shown
    assert "note      train.epochs is not for P1" in shown
    assert "model.blocks: [1, 2]" in shown
    assert 'model.blocks="<P1.best>"' in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.yaml"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--phases", "P9"], "there is no phase 'P9'"),
        (["--phases", "P2"], "P2.model.blocks=… P2.train.optimizer.lr=…"),
        (["--phases", "P3"], "P3 takes the run of P2"),
        (["P0.train.epoch=2"], "did you mean train.epochs?"),
        (["P1.axes.model.bloks=[1]"], "model.bloks"),
        (["P1.axes.model.blocks=[]"], "the axis model.blocks has no values"),
        (["P1.axes.model.blocks=[two]"], "model.blocks=two"),
        (["P1.baseline.model.blocks=7"], "baseline"),
        (["model.blocks=3"], "model.blocks cannot be fixed: P1 varies it"),
        (["data.path=nowhere.txt"], "nowhere.txt"),
        (["P0.gate=final_loss <"], "column 13"),
        (["P0.gate=speed > 3"], "does not report"),
    ],
)
def test_refused_before_anything_starts(
    book: str, words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["play", book, *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "do:" in error
    assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "calls.jsonl").exists()


def test_whether_the_recipe_has_a_metric_is_asked_only_where_one_is_named(
    book: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def ask(arguments: list[str], **_: object) -> dict[str, object]:
        asked.append(arguments)
        return {"metrics": ["hr_10", "ndcg_10"]}

    monkeypatch.setattr("paceline.cli.sizes.ask_worker", ask)
    assert run_command(["play", book, "--dry-run"]) == 0
    assert asked == []
    assert run_command(["play", book, "--dry-run", "P2.gate=test.ndcg_1 > 0.1"]) == 2
    assert "do:    write test.ndcg_10" in capsys.readouterr().err
    assert "data.users=60" in asked[0]
    assert run_command(["play", book, "--dry-run", "P2.gate=test.ndcg_10 > 0.1"]) == 0


def test_p2_alone_with_keys_by_hand(book: str, tmp_path: Path) -> None:
    words = ["model.blocks=1", "P2.train.optimizer.lr=0.01"]
    assert run_command(["play", book, "--phases", "P2", *words]) == 0
    (call,) = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert {"model.blocks=1", "train.optimizer.lr=0.01"} <= set(call)


def test_what_is_varied_and_typed_is_one_problem(book: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["play", book, "model.blocks=3"]) == 2
    assert capsys.readouterr().err.count("ConfigError") == 1
