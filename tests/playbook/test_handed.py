from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.playbook.handed import check_runs, find_runs
from paceline.playbook.playbook import Playbook
from paceline.playbook.preview import describe_play
from paceline.playbook.selection import select
from paceline.playbook.stage import Stage
from paceline.playbook.winner import check_uses, find_used

Written = Callable[..., Playbook]
BOOK = """
config: sasrec
phases:
  towers: {kind: train}
  screen: {kind: sweep, axes: {model.blocks: [1, 2]}}
  P2: {kind: train, use: screen.best, runs: {data.path: towers}}
"""


def test_a_run_becomes_a_setting_that_is_recorded(written: Written, tmp_path: Path) -> None:
    book = written(BOOK, "P2.model.blocks=1")
    run = tmp_path / "towers" / "run"
    used = find_used(book, "P2", {"towers": {"run": run}})
    assert used.settings == {"data.path": str(run)}
    assert used.to_record({}) == [{"from": "towers.run", "file": str(run), "key": "data.path", "value": str(run)}]
    scene = Stage(book, select(book), tmp_path).scene("P2", used, {})
    assert scene.settings == {"data.path": str(run), "model.blocks": 1}
    assert scene.used == ("data.path",)


def test_what_will_be_there_is_unknown_until_then(written: Written, tmp_path: Path) -> None:
    book = written(BOOK)
    stage = Stage(book, select(book), tmp_path)
    used = find_used(book, "P2", {}, expected=["towers", "screen"])
    assert used.settings == {"model.blocks": "<screen.best>", "data.path": "<towers.run>"}
    # What is not known yet cannot be checked yet.
    assert stage.scene("P2", used, {}).without_unknown().settings == {}
    lines = describe_play(stage)
    assert "  uses      the run of towers: data.path" in lines
    assert any("data.path=" in line and "<towers.run>" in line for line in lines)


def test_without_the_run_it_is_refused_unless_something_else_was_typed(written: Written) -> None:
    with pytest.raises(UsageError, match="towers has not been done here") as caught:
        find_runs(written(BOOK), "P2", {}, expected=["screen"])
    assert "P2.data.path=RUN" in caught.value.problems[0].do
    assert find_runs(written(BOOK, "P2.data.path=mine"), "P2", {}) == {}
    assert find_runs(written(BOOK, "P2.runs={}"), "P2", {}) == {}


def test_references_that_lead_nowhere(written: Written) -> None:
    book = written(
        """
config: sasrec
phases:
  P0: {kind: train, runs: {data.path: P1}}
  P1: {kind: sweep, axes: {model.blocks: [1]}}
  P2: {kind: train, runs: {data.path: P1}}
  P3: {kind: train, runs: {data.path: P2}, set: {data.path: mine}}
"""
    )
    found = [problem.what for problem in check_runs(book)]
    assert found == [
        "P0 takes the run of P1 for data.path, which is no earlier phase that trains",
        "P2 takes the run of P1 for data.path, which is no earlier phase that trains",
        "data.path is set, and the run of P2 besides",
    ]
    assert [problem.what for problem in check_uses(book)] == found
