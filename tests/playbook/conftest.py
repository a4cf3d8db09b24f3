"""Playbooks whose commands are run by a stand-in."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paceline.playbook import runner
from paceline.playbook.child import Ended
from paceline.playbook.playbook import Playbook, load_playbook
from paceline.playbook.preview import check_play
from paceline.playbook.selection import select
from paceline.playbook.stage import Stage
from paceline.playbook.state import PlayRecord
from tests.playbook import standin

STANDIN = Path(__file__).parent / "standin.py"
PREFIX = (sys.executable, str(STANDIN))
SMALL = """
config: sasrec
set: {data.users: 60, launch.gpus: []}
phases:
  P0: {kind: train, set: {train.max_steps: 4, train.epochs: null}, gate: [failures == 0, final_loss < first_loss]}
  P1:
    kind: sweep
    axes: {model.blocks: [1, 2], train.optimizer.lr: [0.002, 0.005]}
    steps: 30
    warmup_steps: 5
    gate: failures == 0
  P2: {kind: train, use: P1.best, gate: [test.objective > baseline.test.objective]}
  P3: {kind: export, enabled: false, of: P2, compile_check: true, gate: [equal]}
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Playbook]:
    """A playbook from its text, and overrides."""

    def write(text: str = SMALL, *overrides: str) -> Playbook:
        file = tmp_path / "book.yaml"
        file.write_text(text)
        return load_playbook(str(file), overrides)

    return write


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """The commands that the stand-in was given so far."""
    file = tmp_path / "calls.jsonl"
    monkeypatch.setenv("CALLS", str(file))
    monkeypatch.setenv("PYTHONPATH", str(STANDIN.parents[2]))
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Inside:
    """Stands for Child: the stand-in is called in this process, which takes no time; test_kills.py has it as a process."""

    def __init__(self, prefix: Sequence[str], signals: object) -> None:
        pass

    def run(self, arguments: Sequence[str], answer: Path | None = None) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = standin.main(list(arguments))
        if answer is not None and out.getvalue():
            answer.write_text(out.getvalue())
        return Ended(code, err.getvalue().splitlines(), out.getvalue())


@pytest.fixture
def play(
    tmp_path: Path, written: Callable[..., Playbook], calls: object, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PlayRecord]:
    """Checks and runs a playbook, in tmp_path/out where nothing else is said."""
    monkeypatch.setattr(runner, "Child", Inside)

    def run(
        *overrides: str,
        text: str = SMALL,
        phases: str | None = None,
        start: str | None = None,
        out: Path | None = None,
    ) -> PlayRecord:
        book = written(text, *overrides)
        stage = Stage(book, select(book, phases, start), out or tmp_path / "out")
        check_play(stage)
        return runner.Play(stage).run()

    return run
