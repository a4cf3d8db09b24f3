"""Guarantee 5: a checkpoint is whole or not there, when the process that saves is killed, and when the disk fills up under it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.engine.checkpoint.reading import check_content, read_state, read_tensors
from paceline.telemetry.checkpoints import MANIFEST, STATE, list_checkpoints, newest_whole, read_checkpoint, shard_name
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import Run
from tests.integration.conftest import HERE, WITHOUT_GPU, Started

KILLS = 30


@pytest.fixture
def killing(tmp_path: Path) -> Iterator[Callable[[int, float], dict]]:
    """killing(3, 0.5) -> what became of a process that saved on and on, and was killed half a save after the third one."""
    command = [sys.executable, str(HERE / "endless_saves.py"), str(tmp_path)]
    environment = WITHOUT_GPU | {"PYTHONPATH": str(HERE.parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def kill(saves: int, fraction: float) -> dict:
            process.stdin.write(f"{saves} {fraction}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield kill
        process.stdin.close()
        assert process.wait(20) == 0


def test_a_save_killed_30_times_leaves_a_whole_checkpoint(
    killing: Callable[[int, float], dict], tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    layout = RunLayout(tmp_path)
    newest_step = inside = 0
    for number in range(KILLS):
        answer = killing(draw.randint(3, 5), draw.random())
        assert answer == {"start": newest_step, "hidden": [], "code": -9}, f"kill {number}"
        inside += any(path.name.startswith(".saving-") for path in layout.checkpoints.iterdir())
        paths = list_checkpoints(layout.checkpoints)
        newest, passed_over = newest_whole(paths, check_content)
        assert passed_over == [], f"kill {number}: the newest visible one is whole"
        if newest is not None:
            assert newest.step >= newest_step
            newest_step = newest.step
            values = {float(value) for tensor in read_tensors(newest, "model.").values() for value in tensor.unique()}
            assert values == {float(newest_step)}, "of one moment"
            assert read_state(newest).samples == newest_step
        for path in paths:
            check_content(read_checkpoint(path))
        for word in ("latest", "best", "final"):
            link = layout.checkpoints / word
            assert not link.is_symlink() or link.exists(), f"kill {number}: {word} leads nowhere"
    print(f"{inside} of {KILLS} kills inside a save; the last whole step is {newest_step}")
    assert inside >= 10
    assert newest_step >= KILLS, "the run went on from kill to kill"


def checkpoints(root: Path) -> dict[int, int]:
    """The visible checkpoints, all of them whole: step -> number of shards. Nothing else may be left of any save."""
    layout = RunLayout(root)
    assert not list(layout.checkpoints.glob(".*"))
    found = {}
    for path in list_checkpoints(layout.checkpoints):
        checkpoint = read_checkpoint(path)
        check_content(checkpoint)
        found[checkpoint.step] = len(checkpoint.manifest.files) - 1
    return found


def assert_told(run: Run, *steps: int) -> None:
    told = [event for event in run.events_of("warning") if "was not saved" in event["what"]]
    assert [event["what"].partition(" was")[0] for event in told] == [
        f"the checkpoint of step {step}" for step in steps
    ]
    assert all(event["why"].startswith("training goes on") for event in told)


@pytest.mark.parametrize("guilty", [0, 1, -1])
def test_a_disk_that_fills_up_on_some_ranks_does_not_stop_the_training(
    run_ranks: Callable[..., Run], guilty: int
) -> None:
    plant = f"full_disk:first=8,last=8,guilty={guilty}"
    run = run_ranks(2, "train.max_steps=14", "checkpoint.every_steps=4", plant=plant)
    assert [row["step"] for row in run.metrics] == list(range(1, 15))
    assert checkpoints(run.layout.root) == {4: 2, 12: 2, 14: 2}
    assert_told(run, 8)
    assert [event["step"] for event in run.events_of("checkpoint")] == [4, 12, 14]


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_last_save_that_fails_is_an_error_and_can_be_made_up_for(
    start_ranks: Callable[..., Started], run_ranks: Callable[..., Run], guilty: int
) -> None:
    length = ("train.max_steps=6", "checkpoint.every_steps=4")
    started = start_ranks(2, *length, plant=f"full_disk:first=6,last=6,guilty={guilty}")
    run = started.wait()
    assert started.codes == [4, 4]
    assert checkpoints(run.layout.root) == {4: 2}
    assert_told(run, 6)
    first = next(event for event in run.events_of("failure") if event["rank"] == 0)
    assert first["error"] == "StorageError"
    assert "the last checkpoint (step 6) was not saved" in first["problems"][0]["what"]
    assert "No space left on device" in started.text(guilty)
    assert "free some space" in started.text(0)
    again = run_ranks(2, *length)
    assert [event["start_step"] for event in again.events_of("plan")] == [0, 4]
    assert set(checkpoints(run.layout.root)) == {4, 6}
    assert not (run.layout.checkpoints / "final").readlink().is_absolute()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def test_damaged_checkpoints_are_passed_over_or_named(
    run_ranks: Callable[..., Run], start_ranks: Callable[..., Started]
) -> None:
    run = run_ranks(1, "train.max_steps=4", "checkpoint.every_steps=2")
    saved = run.layout.checkpoints
    cut(saved / "step_00000004" / shard_name(0))
    run = run_ranks(1, "train.max_steps=6", "checkpoint.every_steps=2")
    assert [event["start_step"] for event in run.events_of("plan")] == [0, 2]
    (event,) = run.events_of("resume")
    assert event["passed_over"][0].startswith("step_00000004: the checkpoint is damaged: shard-00000.safetensors has")
    assert set(checkpoints(run.layout.root)) == {2, 4, 6}
    assert (saved / "step_00000004.damaged").is_dir()
    for step, name in ((2, shard_name(0)), (4, STATE), (6, MANIFEST)):
        cut(saved / f"step_{step:08d}" / name)
    before = sorted((str(path), path.stat().st_size) for path in saved.rglob("*"))
    started = start_ranks(2, "train.max_steps=8", "checkpoint.every_steps=2")
    started.wait()
    assert started.codes == [2, 2]
    for step in (2, 4, 6):
        assert f"step_{step:08d}: the checkpoint is damaged" in started.text(0)
    assert "--out DIR" in started.text(0)
    assert sorted((str(path), path.stat().st_size) for path in saved.rglob("*")) == before
