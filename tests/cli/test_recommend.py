from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import recommend
from paceline.cli.main import run_command
from paceline.telemetry.layout import RunLayout
from tests.saved_runs import RUN_ID, save_run

ANSWER: dict[str, Any] = {
    "checkpoint": "runs/a/checkpoints/step_00000003",
    "step": 3,
    "run_id": RUN_ID,
    "note": "",
    "user": "17",
    "history": [{"item": str(item), "title": None, "score": None} for item in range(11, 18)],
    "items": [
        {"item": "42", "title": "[red] (2007)", "score": 3.25},
        {"item": "7", "title": None, "score": -0.5},
        {"item": "evil\x1b[2J", "title": "Été", "score": None},
    ],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the worker was asked; it answers ANSWER."""
    calls: list[list[str]] = []

    def ask_worker(arguments: list[str]) -> dict[str, Any]:
        calls.append(list(arguments))
        return ANSWER

    monkeypatch.setattr(recommend, "ask_worker", ask_worker)
    return calls


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return save_run(tmp_path / "run", steps=())


def test_the_worker_is_asked(layout: RunLayout, asked: list[list[str]]) -> None:
    assert run_command(["recommend", str(layout.root), "--user", "-17"]) == 0
    words = ["--user=b 2", "--top", "3", "--checkpoint", "final", "--keep-seen"]
    assert run_command(["recommend", str(layout.root), *words]) == 0
    assert run_command(["recommend", str(layout.root), "--history", "5, B07-é,-9"]) == 0
    start = ["paceline.worker.model", "recommend", str(layout.root), "--checkpoint"]
    assert asked == [
        [*start, "best", "--top", "10", "--user=-17"],
        [*start, "final", "--top", "3", "--user=b 2", "--keep-seen"],
        [*start, "best", "--top", "10", f"--history={json.dumps(['5', 'B07-é', '-9'])}"],
    ]


def test_json_for_a_script(layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["recommend", str(layout.root), "--user", "17", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(layout.root)} | ANSWER


def test_without_a_terminal_it_is_plain(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWER, "note", "titles cannot be read")
    assert run_command(["recommend", str(layout.root), "--user", "17"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "42\t3.2500\t[red] (2007)\n7\t-0.5000\t\nevil�[2J\t\tÉté\n"
    assert shown.err == "titles cannot be read\nstep 3: user 17, 7 events\n"


def test_tables_on_a_terminal(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setitem(ANSWER, "note", "there is no best checkpoint here: the newest is taken")
    assert run_command(["recommend", str(layout.root), "--user", "17"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "there is no best checkpoint here: the newest is taken" in lines
    assert "step 3: user 17, 7 events" in lines
    assert "│ 3 │ 13 │ │" in lines
    assert "│ 7 │ 17 │ │" in lines
    assert not any(line.startswith("│ 2 │ 12") for line in lines), "only the last five of the history"
    assert "│ 1 │ 42 │ [red] (2007) │ 3.2500 │" in lines
    assert "│ 3 │ evil�[2J │ Été │ │" in lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "for whom?"),
        (["--user", "1", "--history", "2"], "two subjects"),
        (["--history", "1,,2"], "without a name"),
        (["--history", ""], "without a name"),
        (["--user", "1", "--top", "0"], "--top"),
        (["--usr", "1"], "--user"),
    ],
)
def test_mistakes(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert run_command(["recommend", str(layout.root), *words]) == 2
    assert says in capsys.readouterr().err
    assert asked == []


def test_what_is_no_run_is_said_without_a_worker(
    tmp_path: Path, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["recommend", str(tmp_path / "nowhere"), "--user", "1"]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert asked == []


STAGES = [
    {"kind": "source", "name": "towers", "status": "ok", "ms": 1.5, "count": 800, "note": ""},
    {"kind": "filter", "name": "seen", "status": "ok", "ms": 0.25, "count": 12, "note": ""},
    {"kind": "scorer", "name": "model", "status": "late", "ms": 200.0, "count": 788, "note": "no answer within 200 ms"},
]


def test_what_is_said_to_the_pipeline(layout: RunLayout, asked: list[list[str]]) -> None:
    words = ["--retrieval", "runs/b", "--candidates", "50", "--block", "1, x", "--block-category", "3,4"]
    assert run_command(["recommend", str(layout.root), "--user", "17", *words]) == 0
    said = {"retrieval": "runs/b", "candidates": 50, "block": ["1", "x"], "block_category": [3, 4]}
    (word,) = [word for word in asked[0] if word.startswith("--pipeline=")]
    assert json.loads(word.removeprefix("--pipeline=")) == said


def test_stages_are_explained(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["recommend", str(layout.root), "--user", "17"]
    assert run_command([*words, "--explain"]) == 2
    assert "without a pipeline" in capsys.readouterr().err
    monkeypatch.setattr(recommend, "ask_worker", lambda _: ANSWER | {"stages": STAGES, "ms": 203.0})
    assert run_command([*words, "--json"]) == 0
    assert "stages" not in json.loads(capsys.readouterr().out)
    assert run_command([*words, "--explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"] == STAGES
    assert run_command([*words, "--explain"]) == 0
    assert "filter\tseen\tok\t0.25\t-12\t" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")
    assert run_command([*words, "--explain"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "│ source │ towers │ ok │ 1.50 │ +800 │ │" in lines
    assert "│ scorer │ model │ late │ 200.00 │ 788 │ no answer within 200 ms │" in lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--block", "1,,2"], "without a name"),
        (["--block-category", "3,x"], "not a list of categories"),
        (["--block-category", "9" * 5000], "not a list of categories"),
        (["--candidates", "0"], "--candidates"),
    ],
)
def test_mistakes_about_the_pipeline(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert run_command(["recommend", str(layout.root), "--user", "1", *words]) == 2
    assert says in capsys.readouterr().err
    assert asked == []


def test_an_export_is_asked_like_a_run(
    tmp_path: Path, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "export.json").write_text("{}")
    assert run_command(["recommend", str(tmp_path), "--user", "1"]) == 2
    assert "the export is damaged" in capsys.readouterr().err
    assert asked == []
    export = {"v": 1, "recipe": "tenrec", "step": 3, "run": "a", "checkpoint": "step_3", "paceline": "0", "torch": "2"}
    export |= {"sha256": "", "num_parameters": 1, "identity": {"values": {}}}
    (tmp_path / "export.json").write_text(json.dumps(export))
    assert run_command(["recommend", str(tmp_path), "--user", "1"]) == 0
    assert asked[0][2] == str(tmp_path)
