from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import prepare_fineweb
from paceline.cli.main import run_command


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = [f"document number {number}" for number in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    return tmp_path / "a.jsonl"


def test_the_last_line_says_what_to_type_next(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "prepare",
        "fineweb",
        "--from",
        "a.jsonl",
        "--field",
        "body",
        "--validation-share",
        "0.2",
        "--out",
        "my text",
    ]
    assert run_command(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("train: ")
    assert shown[1].startswith("validation: ")
    assert shown[2:] == [
        "tokenizer: bytes:1, vocabulary 258",
        "wrote and verified 2 shards and manifest.json in my text",
        "next: paceline train nsa data.source=shards data.path='my text'",
    ]
    assert run_command(words) == 0
    assert capsys.readouterr().out.splitlines()[3].startswith("nothing to do, verified: 2 shards")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--from", "nowhere"], "no such file"),
        (["--from", "a.jsonl"], "a.jsonl:1"),
        (["--from", "a.jsonl", "--validation-share", "0"], "between 0 and 1"),
        (["--from", "a.jsonl", "--max-tokens", "0.5"], "no number of tokens"),
        (["--from", "a.jsonl", "--shard-tokens", "nan"], "no number of tokens"),
        (["--from", "a.jsonl", "--tokenizer", "gpt2"], "no such tokenizer"),
        (["--form", "a.jsonl"], "--from"),
        (["--sample", "10B"], "--sample 10BT"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_code_2(
    lines: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert run_command(["prepare", "fineweb", *words]) == 2
    assert says in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(
    lines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_fineweb, "prepare", interrupt)
    assert run_command(["prepare", "fineweb", "--from", "a.jsonl"]) == 130
    assert "goes on where it stopped" in capsys.readouterr().err
