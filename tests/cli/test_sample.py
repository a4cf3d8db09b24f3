from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import sample
from paceline.cli.main import run_command
from paceline.telemetry.layout import RunLayout
from tests.saved_runs import RUN_ID, save_run

ANSWER: dict[str, Any] = {
    "checkpoint": "runs/a/checkpoints/step_00000003",
    "step": 3,
    "run_id": RUN_ID,
    "note": "",
    "prompt": "Été ",
    "text": "and\nso \x1b[2Jon",
    "num_prompt": 6,
    "num_tokens": 9,
    "bytes_per_token": 2**19,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the worker was asked; it answers ANSWER."""
    calls: list[list[str]] = []

    def ask_worker(arguments: list[str]) -> dict[str, Any]:
        calls.append(list(arguments))
        return ANSWER

    monkeypatch.setattr(sample, "ask_worker", ask_worker)
    return calls


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return save_run(tmp_path / "run", steps=())


def test_the_worker_is_asked_and_the_text_stands_alone(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sample", str(layout.root), "--prompt", "-Été ", "--top", "4", "--seed", "2"]) == 0
    words = ["--checkpoint", "best", "--device", "auto", "--tokens", "100", "--temperature", "0.8", "--seed", "2"]
    words += ["--top", "4"]
    assert asked == [["paceline.worker.model", "sample", str(layout.root), *words, "--prompt=-Été "]]
    shown = capsys.readouterr()
    assert shown.out == "Été and\nso �[2Jon\n", "nothing steers the terminal"
    assert shown.err == "step 3: 9 tokens after 6, 0.50 MiB of the caches read for each\n"


def test_json_for_a_script(layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sample", str(layout.root), "--prompt", "Été ", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(layout.root)} | ANSWER


def test_a_prompt_is_asked_for(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sample", str(layout.root)]) == 2
    assert "--prompt" in capsys.readouterr().err


def test_a_device_that_is_none_is_refused(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sample", str(layout.root), "--prompt", "a", "--device", "gpu"]) == 2
    assert "auto, cpu or cuda" in capsys.readouterr().err
    assert not asked
    assert run_command(["sample", str(layout.root), "--prompt", "a", "--device", "cpu"]) == 0
    assert "cpu" in asked[0]


def test_a_seed_that_no_generator_takes_is_refused(
    layout: RunLayout, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sample", str(layout.root), "--prompt", "a", "--seed", str(2**63)]) == 2
    assert "--seed" in capsys.readouterr().err
    assert not asked
