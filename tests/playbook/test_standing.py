"""Results of another machine, of other code, and of a directory that was moved."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import ConfigError, PacelineError
from paceline.playbook import ground, runner, standing
from paceline.playbook.playbook import Playbook, load_playbook
from paceline.playbook.state import PlayRecord, load_record
from paceline.recipes.job import Job
from tests.playbook.conftest import SMALL
from tests.playbook.test_goes_on import BOOK, rows

Run = Callable[..., PlayRecord]
Calls = Callable[[], list[list[str]]]
Move = Callable[..., None]
HERE = {"host": "a", "GPUs": "1 × H200", "torch": "2.13.0", "source of paceline": "11"}


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Move:
    """To a machine that differs in these."""

    def now(**other: str) -> None:
        monkeypatch.setattr(runner, "find_ground", lambda: HERE | other)

    now()
    return now


def test_what_another_machine_measured_is_measured_again_and_the_page_says_why(
    play: Run, calls: Calls, tmp_path: Path, move: Move, capsys: pytest.CaptureFixture[str]
) -> None:
    first = play("launch.nproc=2", text=BOOK)
    assert first.phase("first").ground == HERE
    before = len(calls())
    play("launch.nproc=2", text=BOOK)
    assert len(calls()) == before
    capsys.readouterr()

    move(host="b", torch="2.14.0")
    again = play("launch.nproc=2", text=BOOK)
    done = [call for call in calls()[before:] if call[0] != "preflight"]
    assert [call[0] for call in done] == ["train", "evaluate", "sweep"]
    why = "another machine or other code (host: a → b, torch: 2.13.0 → 2.14.0)"
    assert f"first: it is done again, because what was begun is of {why}" in capsys.readouterr().out
    assert why in (tmp_path / "out" / "report.md").read_text()
    assert again.phase("first").links == {"run": "first/run-2"}
    # The ledger of a sweep does not know hosts: of another node of the same kind it would take the trials.
    assert again.phase("other").links["sweep"] == "other/sweep-2"
    assert again.phase("first").ground["host"] == "b"


def test_other_code_is_another_thing_that_was_measured(play: Run, calls: Calls, tmp_path: Path, move: Move) -> None:
    play(text=BOOK)
    before = len(calls())
    move(**{"source of paceline": "22"})
    # What was not asked for is not run, and does not count either.
    record = play(text=BOOK, phases="accept")
    assert record.verdict == "nothing was judged; 3 skipped"
    assert "another machine or other code (source of paceline: 11 → 22)" in rows(tmp_path / "out")["first", ""]["why"]
    assert len(calls()) == before
    play(text=BOOK)
    assert [call[0] for call in calls()[before:]] == ["train", "evaluate"]


def test_a_record_that_does_not_say_where_is_not_of_here(play: Run, calls: Calls, tmp_path: Path, move: Move) -> None:
    play(text=BOOK)
    file = tmp_path / "out" / "playbook.json"
    stored = json.loads(file.read_text())
    for phase in stored["phases"]:
        del phase["ground"]
    file.write_text(json.dumps(stored))
    before = len(calls())
    assert "nobody noted on which machine" in play(text=BOOK).phase("first").note
    assert len(calls()) > before


def test_a_start_that_does_not_come_far_hides_nothing(
    play: Run, tmp_path: Path, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names this machine, and phases that nobody came to are of another one."""
    text = BOOK.replace("required: false\n    set", "set")
    play("launch.nproc=2", text=text)
    move(host="b")
    monkeypatch.setenv("FAIL", "train")
    with pytest.raises(PacelineError):
        play("launch.nproc=2", text=text)
    stored = load_record(tmp_path / "out")
    assert stored is not None
    assert (stored.phase("first").state, stored.phase("other").state) == ("failed", "done")
    assert stored.phase("other").note == "done on another machine or with other code (host: a → b)"
    assert "done on another machine or with other code (host: a → b)" in (tmp_path / "out" / "report.md").read_text()


def test_what_is_trained_stays_trained_wherever_that_was(
    play: Run, calls: Calls, tmp_path: Path, move: Move, capsys: pytest.CaptureFixture[str]
) -> None:
    play()
    before = len(calls())
    move(host="b")
    record = play()
    assert len(calls()) == before
    assert record.phase("P0").note == "done on another machine or with other code (host: a → b)"
    assert record.phase("P0").ground["host"] == "a"
    assert "done on another machine or with other code (host: a → b)" in capsys.readouterr().out
    assert "done on another machine or with other code (host: a → b)" in (tmp_path / "out" / "report.md").read_text()
    # Back where it was done, there is nothing to say.
    move()
    assert play().phase("P0").note == ""
    move(host="b")
    play(text=SMALL.replace("config: sasrec", "config: sasrec\nbound: true"))
    assert len(calls()) > before


def test_what_is_gone_and_made_again_here_is_of_here(play: Run, tmp_path: Path, move: Move) -> None:
    play()
    move(host="b")
    assert play().phase("P0").ground["host"] == "a"
    shutil.rmtree(tmp_path / "out" / "P0" / "run")
    for _ in range(2):
        again = play()
        assert (again.phase("P0").ground["host"], again.phase("P0").note) == ("b", "")
        # The others are where they were.
        assert again.phase("P1").note == "done on another machine or with other code (host: a → b)"


def test_who_is_bound_to_a_machine(written: Callable[..., Playbook]) -> None:
    assert load_playbook("validate").is_bound
    assert not load_playbook("p0-p3").is_bound
    assert not load_playbook("validate", ["bound=false"]).is_bound
    with pytest.raises(ConfigError, match="bound=often is neither true nor false"):
        written(SMALL.replace("config: sasrec", "config: sasrec\nbound: often"))


def test_a_directory_may_be_moved(play: Run, calls: Calls, tmp_path: Path, move: Move) -> None:
    play(text=BOOK)
    before = len(calls())
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    play(text=BOOK)
    assert len(calls()) == before
    (tmp_path / "out").unlink()
    play(text=BOOK, out=tmp_path / "elsewhere")
    assert len(calls()) == before


def test_the_ground_tells_machine_and_code() -> None:
    found = ground.find_ground({"CUDA_VISIBLE_DEVICES": "1"})
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert len(found["source of paceline"]) == 16
    assert found["torch"] != "none"
    assert all(found.values())
    assert ground.show_difference(found, found) == ""
    assert ground.show_difference({"torch": "1"}, {"cores": "2"}) == "torch: 1 → not noted, cores: not noted → 2"


def test_a_script_that_was_edited_is_run_again(
    play: Run, calls: Calls, tmp_path: Path, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("print(1)\n")
    command = f"{{argv: [{sys.executable}, x.py], metrics: {{step: 'iter (.+)'}}}}"
    Path("mine.yaml").write_text(f"recipe: command\ncommand: {command}\ntrain: {{max_steps: 4}}\n")
    text = """
config: mine.yaml
phases:
  T: {kind: train}
  A: {kind: accept}
"""
    play(text=text)
    play(text=text)
    assert len(calls()) == 1
    Path("x.py").write_text("print(2)\n")
    assert "source of the script or recipe: " in play(text=text).phase("T").note
    assert len(calls()) == 2


def test_the_code_of_a_phase_is_read_once_in_a_start(play: Run, move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def digest(job: Job) -> str:
        read.append(job.recipe.name)
        return "77"

    monkeypatch.setattr(standing, "own_digest", digest)
    text = "config: sasrec\nbound: true\nset: {launch.gpus: []}\nphases:\n  T: {kind: train}\n  U: {kind: train}\n"
    for _ in range(2):
        # Two phases of the same settings are of the same code.
        assert play(text=text).phase("U").ground == HERE | {"source of the script or recipe": "77"}
        assert read == ["sasrec"]
        read.clear()
