from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from paceline.errors import OccupiedError, StorageError, UsageError
from paceline.files import Lock, read_records
from paceline.launch.claim import AlreadyFinished, Claim, Reservation, claim_run, find_finished, reserve_run
from paceline.launch.description import RunDescription
from paceline.launch.origin import Origin
from paceline.telemetry import ownership
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.ownership import OWNER_KILLED
from paceline.telemetry.run_file import AttemptHost, load_run_file
from paceline.telemetry.stop_request import write_stop_request

CONFIG = "recipe: toy\nlaunch:\n  nproc: 1\ntrain:\n  epochs: 2\n"


def describe(fingerprint: str = "aa", config: str = CONFIG, **values: object) -> RunDescription:
    identity = {"fingerprint": fingerprint, "values": {"run.seed": 0} | values}
    argv, origins = ["paceline", "train", "toy"], {"run.seed": "default"}
    return RunDescription("toy", "", argv, config, origins, identity, numerics=["precision.mode"])


def claim(root: Path, description: RunDescription | None = None, origin: Origin | None = None) -> Claim:
    claimed = claim_run(root, description or describe(), 2, origin, orphan_wait_s=0.2)
    assert isinstance(claimed, Claim)
    return claimed


def ended(root: Path, state: str, config: str = CONFIG) -> None:
    first = claim(root, describe(config=config))
    first.finish(state, "because", 5, 0)
    first.release()


def test_a_fresh_directory_is_claimed_and_described(tmp_path: Path) -> None:
    claimed = claim(tmp_path / "new" / "run")
    layout = claimed.layout
    run = load_run_file(layout.root)
    assert run is not None
    assert (run.recipe, run.state, claimed.attempt) == ("toy", "running", 1)
    assert run.attempts[0].owner_pid == os.getpid()
    assert run.attempts[0].world_size == 2
    assert layout.config.read_text() == CONFIG
    assert layout.origins.exists()
    assert claimed.pulses.is_dir()
    claimed.finish("finished", "finished", 10, 0)
    claimed.release()
    run = load_run_file(layout.root)
    assert run is not None
    assert (run.state, run.attempts[0].step, run.attempts[0].exit_code) == ("finished", 10, 0)
    assert not claimed.pulses.exists()


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(OccupiedError, match=r"thesis\.tex"):
        claim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_claim_that_died_before_its_first_write_is_no_obstacle(tmp_path: Path) -> None:
    RunLayout(tmp_path).owner_lock.touch()
    RunLayout(tmp_path).attempt_lock.touch()
    (tmp_path / ".run.json.4711").write_text('{"v"')
    claim(tmp_path).release()


def test_another_runs_directory_is_refused_with_what_differs(tmp_path: Path) -> None:
    ended(tmp_path, "stopped")
    before = RunLayout(tmp_path).config.read_text()
    other = describe("bb", **{"run.seed": 1, "model.width": 64})
    with pytest.raises(OccupiedError) as caught:
        claim(tmp_path, other)
    text = caught.value.render()
    assert "run.seed: 0 → 1" in text
    assert "model.width: null → 64" in text
    assert RunLayout(tmp_path).config.read_text() == before
    claim(tmp_path).release()  # the lock was given back


def test_a_run_of_the_sdk_is_refused_in_one_line(tmp_path: Path) -> None:
    ended(tmp_path, "stopped")
    run = load_run_file(tmp_path)
    assert run is not None
    run.recipe = "sdk"
    run.save(RunLayout(tmp_path))
    with pytest.raises(OccupiedError, match="the directory holds a run of the SDK") as caught:
        claim(tmp_path, describe("bb", **{"model.width": 64}))
    assert "→" not in caught.value.render()


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    first = claim(tmp_path)
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from test_claim import claim\n"
        "try: claim(Path(sys.argv[1]))\n"
        "except Exception as error: print(error.exit_code, error.render())"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert second.stdout.startswith("2 OccupiedError")
    assert f"process {os.getpid()} owns it" in second.stdout
    assert f"paceline stop {tmp_path}" in second.stdout
    first.release()


def test_an_attempt_whose_launcher_was_killed_is_closed_and_the_next_begins(tmp_path: Path) -> None:
    first = claim(tmp_path)
    first.release()  # what the end of the process does
    write_stop_request(first.layout.stop_request, 1, "ctrl_c", "test")
    second = claim(tmp_path)
    assert second.attempt == 2
    assert [a.state for a in second.run.attempts] == ["failed", "running"]
    assert second.run.attempts[0].reason == OWNER_KILLED
    assert second.notes == [f"attempt 1 of this run ended (failed: {OWNER_KILLED})"]
    assert not second.layout.stop_request.exists()
    assert not first.pulses.exists()
    assert second.pulses.is_dir()
    second.finish("stopped", "ctrl_c", 1, 130)
    second.release()


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    ended(tmp_path, "finished")
    again = claim_run(tmp_path, describe(config=CONFIG.replace("nproc: 1", "nproc: 2")), 2)
    assert isinstance(again, AlreadyFinished)
    assert again.changed == ["launch.nproc: 1 → 2"]
    run = load_run_file(tmp_path)
    assert run is not None
    assert len(run.attempts) == 1


@pytest.mark.parametrize(
    ("config", "is_longer"),
    [
        (CONFIG.replace("epochs: 2", "epochs: 3"), True),
        (CONFIG.replace("epochs: 2", "epochs: 1"), False),
        (CONFIG.replace("epochs: 2", "max_steps: 900"), True),
        (CONFIG + "  max_steps: 1\n", False),
        (CONFIG + "stop:\n  patience: 5\n", True),
        (CONFIG + "stop:\n  min_delta: 0.1\n", True),
        (CONFIG + "stop:\n  max_hours: 3\n", False),
    ],
)
def test_a_finished_run_is_extended_when_it_became_longer(tmp_path: Path, config: str, is_longer: bool) -> None:
    ended(tmp_path, "finished")
    claimed = claim_run(tmp_path, describe(config=config), 2)
    assert isinstance(claimed, Claim) == is_longer
    if isinstance(claimed, Claim):
        assert claimed.attempt == 2
        claimed.release()


def test_an_attempt_begins_when_nobody_makes_a_checkpoint_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(tmp_path, "stopped")
    monkeypatch.setattr(ownership, "_FENCE_S", 0.1)
    fence = Lock(RunLayout(tmp_path).attempt_lock)
    assert fence.acquire()
    with pytest.raises(OccupiedError, match="earlier attempt"):
        claim(tmp_path)
    run = load_run_file(tmp_path)
    assert run is not None
    assert len(run.attempts) == 1
    fence.release()
    second = claim(tmp_path)
    assert fence.acquire()  # held for the moment only
    fence.release()
    second.release()


def test_an_attempt_knows_which_part_of_a_log_is_its_own(tmp_path: Path) -> None:
    first = claim(tmp_path)
    assert first.run.attempts[0].log_bytes == {}
    (tmp_path / "logs" / "launcher.log").write_bytes(b"hello\n")
    first.finish("stopped", "because", 5, 0)
    first.release()
    second = claim(tmp_path)
    run = load_run_file(tmp_path)
    assert run is not None
    assert [attempt.log_bytes for attempt in run.attempts] == [{}, {"launcher.log": 6}]
    second.release()


def test_a_run_is_held_before_its_size_is_known(tmp_path: Path) -> None:
    held = reserve_run(tmp_path, describe())
    assert isinstance(held, Reservation)
    assert load_run_file(tmp_path) is None, "no attempt has begun"
    with pytest.raises(OccupiedError, match="still running"):
        claim_run(tmp_path, describe(), 2)
    hosts = [AttemptHost(0, "a", "10.9.0.1", 0, 2), AttemptHost(1, "b", "10.9.0.2", 2, 1)]
    first = held.begin(3, hosts)
    assert first.run.attempts[0].world_size == 3
    first.finish("stopped", "resize", 7, 0)
    second = first.begin_again(describe(), hosts[:1])
    assert [(attempt.world_size, len(attempt.hosts)) for attempt in second.run.attempts] == [(3, 2), (2, 1)]
    assert load_run_file(tmp_path) == second.run
    second.finish("finished", "length", 9, 0)
    assert find_finished(tmp_path, describe()) is not None, "whoever holds it"
    assert find_finished(tmp_path, describe("bb")) is None
    held.release()
    assert isinstance(reserve_run(tmp_path, describe()), AlreadyFinished)


def test_a_run_that_was_held_in_vain_is_free_again(tmp_path: Path) -> None:
    held = reserve_run(tmp_path, describe())
    assert isinstance(held, Reservation)
    held.release()
    claim(tmp_path).release()


def test_the_next_attempt_of_the_same_owner(tmp_path: Path) -> None:
    first = claim(tmp_path)
    first.finish("failed", "rank 1 was killed", 7, 4)
    write_stop_request(first.layout.stop_request, 1, "stop_command", "test")
    second = first.begin_again(describe())
    assert not Lock(first.layout.owner_lock).acquire()
    run = load_run_file(tmp_path)
    assert run is not None
    assert [(a.attempt, a.state, a.reason, a.exit_code) for a in run.attempts] == [
        (1, "failed", "rank 1 was killed", 4),
        (2, "running", "", None),
    ]
    assert (second.attempt, run.state, second.notes) == (2, "running", [])
    assert not first.layout.stop_request.exists()
    assert second.pulses.is_dir()
    assert not first.pulses.exists()
    second.finish("finished", "length", 9, 0)
    second.release()


@pytest.mark.parametrize(
    ("more", "line", "is_numeric"),
    [
        ("precision:\n  mode: bf16\n", "precision.mode: null → bf16 (numerics)", True),
        ("telemetry:\n  log_every: 5\n", "telemetry.log_every: null → 5", False),
    ],
)
def test_what_changed_since_the_last_attempt_is_recorded(
    tmp_path: Path, more: str, line: str, is_numeric: bool
) -> None:
    ended(tmp_path, "stopped", config=CONFIG)
    second = claim(tmp_path, describe(config=f"{CONFIG}run:\n  out: elsewhere\n{more}"))
    second.release()
    run = load_run_file(tmp_path)
    assert run is not None
    assert [attempt.changed for attempt in run.attempts] == [[], [line]]
    (event,) = read_records(second.layout.events)
    assert (event["attempt"], event["source"], event["kind"]) == (2, "launcher", "note")
    assert (event["what"], event["changed"]) == ("settings changed since attempt 1", [line])
    assert ("bit for bit" in event.get("why", "")) == is_numeric


def test_each_attempt_says_what_trains_it_as_it_is_then(tmp_path: Path) -> None:
    code = tmp_path / "model.py"
    code.write_text("width = 4\n")
    description = dataclasses.replace(describe(), code={"mine": [code]})
    first = claim(tmp_path / "run", description)
    code.write_text("width = 8\n")  # while it runs: a restart imports it anew
    first.finish("failed", "because", 5, 4)
    first.begin_again(description).release()
    run = load_run_file(tmp_path / "run")
    assert run is not None
    one, two = (attempt.software for attempt in run.attempts)
    assert one["torch"] == two["torch"] == metadata.version("torch")
    assert [name for name in one if one[name] != two[name]] == ["mine"]


def test_an_attempt_that_died_before_its_settings_were_written(tmp_path: Path) -> None:
    ended(tmp_path, "stopped")
    RunLayout(tmp_path).config.unlink()
    second = claim(tmp_path)
    second.release()
    assert second.run.attempts[1].changed == []
    assert not second.layout.events.exists()


def test_a_place_below_a_file_or_without_permission(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError) as caught:
            claim(place)
        assert caught.value.exit_code == 2
        assert "--out" in caught.value.problems[0].do


@pytest.fixture
def mounted(tmp_path: Path, mount_disk: Callable[[Path, str], None]) -> Path:
    """A file system of 32 KiB that can be filled and made read-only."""
    mount_disk(tmp_path / "small", "size=32k")
    return tmp_path / "small"


def test_a_full_disk(mounted: Path) -> None:
    (mounted / "run").mkdir()
    with pytest.raises(OSError, match="No space"):
        (mounted / "filler").write_bytes(b"x" * 2**20)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        claim(mounted / "run")
    assert caught.value.exit_code == 4
    (mounted / "filler").unlink()
    claim(mounted / "run").release()


def test_how_it_ended_is_told_on_a_full_disk_or_the_record_stays_as_it_was(mounted: Path) -> None:
    (mounted / "run").mkdir()
    claimed = claim(mounted / "run")
    with pytest.raises(OSError, match="No space"):
        (mounted / "filler").write_bytes(b"x" * 2**20)
    assert os.statvfs(mounted).f_bfree == 0
    before = claimed.layout.run.stat()
    claimed.finish("failed", "x" * 1900, 3, 4)
    after = claimed.layout.run.stat()
    assert after.st_ino == before.st_ino, "there was room beside it"
    assert after.st_size > before.st_size // 4096 * 4096 + 4096, "it needed no further block"
    run = load_run_file(mounted / "run")
    assert run is not None
    assert (run.state, run.attempts[-1].exit_code) == ("failed", 4)
    with pytest.raises(StorageError, match="the disk is full"):
        claimed.finish("failed", "x" * 20_000, 3, 4)
    assert load_run_file(mounted / "run") == run
    claimed.release()


def test_a_read_only_directory(mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with pytest.raises(UsageError, match="cannot write there") as caught:
        claim(mounted / "run")
    assert caught.value.exit_code == 2


def test_workers_may_share_while_the_owner_holds(tmp_path: Path) -> None:
    claimed = claim(tmp_path)
    one, two = Lock(claimed.layout.workers_lock), Lock(claimed.layout.workers_lock)
    assert one.acquire(shared=True)
    assert two.acquire(shared=True)
    one.release()
    two.release()
    claimed.release()


def test_a_run_file_that_names_somebody_elses_directory_deletes_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "paceline-abc-1"
    mine.mkdir()
    ended(tmp_path / "run", "stopped")
    run = load_run_file(tmp_path / "run")
    assert run is not None
    run.attempts[0].pulses = str(mine)
    run.save(RunLayout(tmp_path / "run"))
    claim(tmp_path / "run").release()
    assert mine.is_dir()
