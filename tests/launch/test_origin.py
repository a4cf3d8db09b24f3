"""Where a run begins, with checkpoints written by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paceline.errors import CheckpointError, OccupiedError, UsageError
from paceline.files import read_json, read_records, write_json
from paceline.launch.claim import Claim, claim_run
from paceline.launch.origin import Origin, Wish, plan_origin
from paceline.launch.weights import find_weights
from paceline.telemetry.checkpoints import MANIFEST, shard_name
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import load_run_file
from tests.launch.saved import RUN_ID, save_checkpoint
from tests.launch.test_claim import CONFIG, claim, describe, ended


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A stopped run with two checkpoints; its identity is run.seed=0, its configuration CONFIG."""
    root = tmp_path / "run"
    ended(root, "stopped")
    for step in (5, 10):
        save_checkpoint(root, step)
    (root / "checkpoints" / "latest").symlink_to("step_00000010")
    (root / "checkpoints" / "best").symlink_to("step_00000005")
    return root


def plan(path: Path, root: Path, fingerprint: str = "aa", is_chosen: bool = True, **values: object) -> Origin:
    return plan_origin(Wish(str(path)), root, is_chosen, describe(fingerprint, **values))


def fork(path: Path, root: Path, fingerprint: str = "bb", **values: object) -> Claim:
    description = describe(fingerprint, **values)
    claimed = claim_run(root, description, 2, plan_origin(Wish(str(path)), root, True, description))
    assert isinstance(claimed, Claim)
    return claimed


def test_the_runs_own_directory_and_newest_checkpoint_are_the_same_as_auto(run: Path) -> None:
    for path in (run, run / "checkpoints" / "latest", run / "checkpoints" / "step_00000010"):
        assert plan(path, run) == Origin()
    shutil.rmtree(run / "checkpoints")
    assert plan(run, run) == Origin()  # killed before its first checkpoint


def test_going_back_in_a_run_is_a_fork(run: Path) -> None:
    path = run / "checkpoints" / "best"
    with pytest.raises(CheckpointError, match="gone on to step 10") as caught:
        plan(path, run)
    assert caught.value.problems[0].do == f"to go back, fork: --resume {path} --out NEW"
    (run / "checkpoints" / "step_00000010" / MANIFEST).write_text("{")
    assert plan(path, run) == Origin()  # the newest whole one
    with pytest.raises(CheckpointError, match="damaged"):
        plan(run / "checkpoints" / "latest", run)


def test_a_fork_records_its_parent_and_what_it_changes(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    path = run / "checkpoints" / "best"
    description = describe("bb", CONFIG.replace("epochs: 2", "epochs: 3"), **{"train.clip_norm": 1.0})
    claimed = claim_run(new, description, 2, plan_origin(Wish(str(path)), new, True, description))
    assert isinstance(claimed, Claim)
    claimed.release()
    saved = load_run_file(new)
    assert saved is not None
    assert saved.parent == {
        "run": RUN_ID,
        "root": str(run),
        "checkpoint": str(run / "checkpoints" / "step_00000005"),
        "step": 5,
        "changed": ["train.epochs: 2 → 3"],
        "given": str(path),
    }
    (note,) = read_records(RunLayout(new).events)
    assert (note["kind"], note["changed"]) == ("note", ["train.epochs: 2 → 3"])
    assert "forked from step 5" in note["what"]


def test_a_checkpoint_that_was_copied_away_can_be_forked(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(run / "checkpoints" / "step_00000005", copied)
    parent = plan(copied, tmp_path / "new", "bb", **{"train.clip_norm": 1.0}).parent
    assert parent is not None
    assert (parent["root"], parent["changed"]) == (str(copied), ["train.clip_norm: null → 1.0"])


def test_the_same_fork_again_goes_on_even_without_its_parent(run: Path, tmp_path: Path) -> None:
    best, new = run / "checkpoints" / "best", tmp_path / "new"
    fork(best, new).release()
    best.unlink()
    best.symlink_to("step_00000010")  # the parent went on
    again = fork(best, new)
    assert again.attempt == 2
    again.release()
    shutil.rmtree(run)
    for path in (best, run / "checkpoints" / "step_00000005"):
        assert plan(path, new, "bb") == Origin()
    with pytest.raises(UsageError, match="no such directory"):
        plan(run, tmp_path / "another", "bb")


def test_a_place_that_holds_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ended(other, "stopped")
    with pytest.raises(OccupiedError, match=r"train\.clip_norm: null → 1\.0"):
        fork(run, other, **{"train.clip_norm": 1.0})
    with pytest.raises(OccupiedError, match="not forked from this checkpoint"):
        fork(run, other, "aa")
    before = load_run_file(other)
    assert before is not None
    assert len(before.attempts) == 1


def test_a_fork_needs_a_place_of_its_own(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "runs" / "default"
    with pytest.raises(CheckpointError) as caught:
        plan(run, elsewhere, "bb", is_chosen=False, **{"train.optimizer.lr": 0.1})
    text = caught.value.render()
    for expected in ("another configuration", "train.optimizer.lr: null → 0.1", "--out NEW to fork", "--init-from"):
        assert expected in text
    with pytest.raises(CheckpointError) as caught:
        plan(run, elsewhere, is_chosen=False)
    assert f"--out {run} goes on with that run" in caught.value.problems[0].do


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_fork_cannot_change_what_the_saved_state_means(run: Path, tmp_path: Path, is_chosen: bool) -> None:
    values = {"run.seed": 1, "train.optimizer.lr": 0.1}
    with pytest.raises(CheckpointError) as caught:
        plan(run, tmp_path / "new", "bb", is_chosen, **values)
    text = caught.value.render()
    assert caught.value.exit_code == 2
    assert "run.seed: 0 → 1" in text
    assert "--init-from" in text
    assert "train.optimizer.lr" not in text
    assert "NEW" not in text


def _newer(path: Path) -> None:
    write_json(path / MANIFEST, read_json(path / MANIFEST) | {"v": 99})


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (_newer, "newer Paceline"),
        (lambda path: (path / MANIFEST).write_text('{"v": 1, "st'), "not JSON"),
        (lambda path: (path / shard_name(0)).unlink(), "shard-00000.safetensors is missing"),
        (lambda path: (path / shard_name(0)).write_bytes(b"weightz"), "checksum"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_creates_nothing(run: Path, tmp_path: Path, break_it, says) -> None:
    saved = run / "checkpoints" / "step_00000010"
    break_it(saved)
    with pytest.raises(UsageError, match=says) as caught:
        fork(saved, tmp_path / "new")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "new").exists()


def test_what_may_not_be_read_is_said(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("paceline.launch.origin.find_checkpoint", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        plan(run, tmp_path / "new")


def test_never_and_first_weights(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    weights = find_weights(str(run))
    origin = plan_origin(Wish("never", str(run)), new, True, describe(), weights)
    assert (origin.must_be_new, origin.parent, origin.init_from) == (True, None, weights.record())
    claim(new, origin=origin).release()
    with pytest.raises(OccupiedError, match="never asks for a new one"):
        claim(new, origin=origin)
    saved = load_run_file(new)
    assert saved is not None
    assert saved.init_from == weights.record()


def test_damaged_weights_create_no_run_and_stop_none(run: Path, tmp_path: Path) -> None:
    weights = find_weights(str(run))
    (run / "checkpoints" / "step_00000010" / shard_name(0)).write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match="checksum"):
        plan_origin(Wish(init_from=str(run)), tmp_path / "new", True, describe(), weights)
    claim(tmp_path / "new", origin=Origin(init_from=weights.record())).release()
    plan_origin(Wish(init_from=str(run)), tmp_path / "new", True, describe(), weights)


def test_a_checkpoint_and_weights_together_are_refused() -> None:
    with pytest.raises(UsageError, match="not both"):
        Wish("runs/a", "runs/b")


def test_the_wish_on_another_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Wish().arguments() == []
    assert Wish("never", "w").arguments() == ["--resume", "never", "--init-from", str(tmp_path / "w")]
    assert Wish("a").arguments() == ["--resume", str(tmp_path / "a")]
