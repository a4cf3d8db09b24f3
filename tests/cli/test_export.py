from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import export
from paceline.cli.main import run_command
from paceline.errors import StorageError
from paceline.trained import load_model
from tests.saved_runs import content_of, save_run


def test_a_worker_writes_it_and_the_run_stays_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", best=3)
    before = content_of(tmp_path / "run")
    out = tmp_path / "out"
    assert run_command(["export", str(tmp_path / "run"), "--out", str(out), "--checkpoint", "latest"]) == 0
    shown = capsys.readouterr().out
    assert "exported step 6 (step_00000006)" in shown
    assert f"export: {out}" in shown
    assert content_of(tmp_path / "run") == before
    assert load_model(out).step == 6
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


def compiled(path: str) -> dict[str, Any]:
    """What a worker says that compiled the export; those in a directory called other come out otherwise."""
    check = {"equal": "other" not in path, "max_difference": 0.5, "eager_ms": 4.0, "compiled_ms": 2.0, "speed_up": 1.0}
    return check | {"compile_s": 9.0, "tolerance": "1e-4", "compared": "9 samples", "measured": "5 blocks"}


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where a worker was asked to write; it writes a word or two there."""
    asked: list[Path] = []

    def ask_worker(arguments: list[str]) -> dict[str, Any]:
        if arguments[1] == "compiled":
            return compiled(arguments[2])
        directory = Path(arguments[arguments.index("--to") + 1])
        asked.append(directory)
        (directory / "export.json").write_text(f"{len(asked)}")
        return {"note": "", "num_parameters": 5, "bytes": 20, "step": 3, "checkpoint": "step_00000003"}

    monkeypatch.setattr(export, "ask_worker", ask_worker)
    return asked


def test_it_lies_in_the_run_unless_said_otherwise(tmp_path: Path, answered: list[Path]) -> None:
    save_run(tmp_path / "run", best=3)
    for count in ("1", "2"):
        assert run_command(["export", str(tmp_path / "run")]) == 0
        assert (tmp_path / "run" / "export" / "export.json").read_text() == count
    assert {path.parent for path in answered} == {tmp_path / "run"}
    assert not any(path.exists() for path in answered)


def test_a_link_is_followed(tmp_path: Path, answered: list[Path]) -> None:
    save_run(tmp_path / "run", best=3)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert run_command(["export", str(tmp_path / "run"), "--out", str(tmp_path / "link")]) == 0
    assert os.listdir(tmp_path / "disk") == ["export.json"]
    assert (tmp_path / "link").is_symlink()


def test_another_directory_is_refused(tmp_path: Path, answered: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", best=3)
    before = content_of(tmp_path)
    assert run_command(["export", str(tmp_path / "run"), "--out", str(tmp_path / "run")]) == 2
    assert "what is no export" in capsys.readouterr().err
    assert run_command(["export", str(tmp_path / "run"), "--out", str(tmp_path / "run" / "run.json" / "x")]) == 2
    assert "a file stands" in capsys.readouterr().err
    assert (content_of(tmp_path), answered) == (before, [])


def test_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "run", best=3)
    before = content_of(tmp_path)

    def fail(arguments: list[str]) -> None:
        (Path(arguments[-1]) / "model.safetensors").write_text("half")
        raise StorageError("the disk is full", "out", "free some space")

    monkeypatch.setattr(export, "ask_worker", fail)
    assert run_command(["export", str(tmp_path / "run")]) == 4
    assert "the disk is full" in capsys.readouterr().err
    assert content_of(tmp_path) == before
    assert not (tmp_path / "run" / "export").exists()


def test_what_is_no_run(tmp_path: Path, answered: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["export", str(tmp_path / "nowhere")]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert answered == []


def test_compiled_and_compared(tmp_path: Path, answered: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", best=3)
    command = ["export", str(tmp_path / "run"), "--compile-check"]
    assert run_command([*command, "--out", str(tmp_path / "a")]) == 0
    assert "4.0 ms as written, 2.0 ms compiled (+100%)" in capsys.readouterr().out
    assert run_command([*command, "--out", str(tmp_path / "other"), "--json"]) == 6
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["export"], found["compile_check"]["equal"]) == (str(tmp_path / "other"), False)
    assert "compiled outputs differ" in shown.err
    # Whatever compiling says, the export is there.
    assert (tmp_path / "other" / "export.json").exists()
    assert run_command(["export", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compile_check"] is None
