"""Saves of a run in training: of the right moment, retried when the disk has room again, never half there."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.engine.checkpoint import saver as saver_module
from paceline.engine.checkpoint import shard
from paceline.engine.checkpoint import writer as writer_module
from paceline.engine.checkpoint.keeping import Retention
from paceline.engine.checkpoint.publishing import Publisher
from paceline.engine.checkpoint.reading import check_content, read_state, read_tensors
from paceline.engine.checkpoint.saver import Saver
from paceline.engine.checkpoint.start import choose_start
from paceline.engine.checkpoint.tensors import MODEL
from paceline.engine.checkpoint.writer import Writer
from paceline.engine.context import Context
from paceline.engine.state import TrainState
from paceline.engine.trainer import Trainer
from paceline.errors import StorageError
from paceline.files import read_records
from paceline.telemetry.checkpoints import list_checkpoints, read_checkpoint
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import read_pulse
from tests.engine.checkpoint.conftest import build_parts, names_below


def steps_saved(layout: RunLayout) -> list[int]:
    """The steps of all visible checkpoints, oldest first, each of them whole."""
    checkpoints = [read_checkpoint(path) for path in reversed(list_checkpoints(layout.checkpoints))]
    for checkpoint in checkpoints:
        check_content(checkpoint)
    return [checkpoint.step for checkpoint in checkpoints]


def warnings(layout: RunLayout) -> list[str]:
    return [event["what"] for event in read_records(layout.events) if event["kind"] == "warning"]


def leftovers(layout: RunLayout) -> list[str]:
    return [name for name in names_below(layout.checkpoints) if name.startswith(".")]


def test_a_save_is_of_the_moment_it_was_asked_for(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights change before the thread has written a byte."""
    context, parts = make_context({"checkpoint": {}}), build_parts(1)
    choose_start(context)
    may_write = threading.Event()
    write_file = writer_module.write_file

    def wait_and_write(*arguments):
        assert may_write.wait(20)
        return write_file(*arguments)

    monkeypatch.setattr(writer_module, "write_file", wait_and_write)
    saver = Saver(context, parts.strategy, parts.optimizer, parts.precision, None)
    saver.prepare()
    parts.train(range(2))
    expected = {name: value.clone() for name, value in parts.model.state_dict().items() if name != "output.weight"}
    state = TrainState(step=2, samples=32)
    saver.approve(state.step)
    saver.save(state)
    saver.hold_update()
    parts.train(range(2, 5))
    state.step, state.samples = 5, 80
    may_write.set()
    saver.approve(state.step)
    saver.save(state)
    parts.train(range(5, 6))
    saver.finish(state, is_final=True)
    assert steps_saved(context.layout) == [2, 5]
    first = read_checkpoint(context.layout.checkpoints / "step_00000002")
    assert read_state(first) == TrainState(step=2, samples=32)
    for name, value in read_tensors(first, MODEL).items():
        assert torch.equal(value, expected[name]), name
    assert (context.layout.checkpoints / "final").readlink().name == "step_00000005"
    events = [event for event in read_records(context.layout.events) if event["kind"] == "checkpoint"]
    assert [(event["step"], event["name"], event["shards"]) for event in events] == [
        (2, "step_00000002", 1),
        (5, "step_00000005", 1),
    ]
    assert all(event["stall_ms"] >= 0 and event["seconds"] >= 0 for event in events)
    assert events[0]["bytes"] == first.manifest.num_bytes


def test_the_next_save_waits_for_the_one_before_to_be_read(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it was asked for while the one before that was still being made visible."""
    context, parts = make_context({"checkpoint": {}}), build_parts(1)
    choose_start(context)
    may_publish, may_write = threading.Event(), threading.Event()
    publish, write_file = Publisher.publish, writer_module.write_file

    def publish_late(*arguments):
        assert may_publish.wait(20)
        return publish(*arguments)

    def write_late(path: str, pieces):
        assert "step_00000002-" not in path or may_write.wait(20)
        return write_file(path, pieces)

    monkeypatch.setattr(Publisher, "publish", publish_late)
    monkeypatch.setattr(writer_module, "write_file", write_late)
    saver = Saver(context, parts.strategy, parts.optimizer, parts.precision, None)

    def save(step: int) -> None:
        with torch.no_grad():
            parts.model.frozen.fill_(step)
        saver.approve(step)
        saver.save(TrainState(step=step))

    save(1)
    save(2)
    may_publish.set()
    third = threading.Thread(target=save, args=(3,))
    third.start()
    third.join(0.3)  # it must not get through; time to do so, if it could
    may_write.set()
    third.join(20)
    saver.finish(TrainState(step=3), is_final=False)
    assert steps_saved(context.layout) == [1, 2, 3]
    for path in list_checkpoints(context.layout.checkpoints):
        checkpoint = read_checkpoint(path)
        assert read_tensors(checkpoint, MODEL)["frozen"].tolist() == [float(checkpoint.step)] * 3


def test_the_pulse_tells_what_a_save_waits_for_and_how_long_one_takes(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor must not take a slow disk for a hang: the pace of `checkpoint` is that of the writing, not of the snapshot."""
    context, parts = make_context({"checkpoint": {}}), build_parts(1)
    choose_start(context)
    write_file, phases = writer_module.write_file, []
    beat = context.pulse.beat
    monkeypatch.setattr(context.pulse, "beat", lambda step, phase: (phases.append((step, phase)), beat(step, phase)))

    def write_slowly(*arguments):
        time.sleep(0.2)
        return write_file(*arguments)

    monkeypatch.setattr(writer_module, "write_file", write_slowly)
    saver = Saver(context, parts.strategy, parts.optimizer, parts.precision, None)
    saver.save(TrainState())
    assert phases == [], "there is nothing to save yet"
    for step in (1, 2):
        saver.approve(step)
        saver.save(TrainState(step=step))
    assert phases == [(1, "snapshot"), (2, "snapshot"), (2, "checkpoint"), (2, "snapshot")]
    saver.finish(TrainState(step=2), is_final=False)
    assert phases[-1] == (2, "checkpoint")
    context.pulse.beat(2, "end")
    pulse = read_pulse(context.layout.root, 0)
    assert pulse is not None
    assert pulse.spent_s["checkpoint"] > 0.4, "two saves of 0.2 s"
    assert pulse.spent_s["snapshot"] < pulse.spent_s["checkpoint"]


def test_a_saver_that_nobody_needs_gives_its_memory_back(make_context: Callable[..., Context]) -> None:
    context, parts = make_context(), build_parts()
    choose_start(context)
    saver = Saver(context, parts.strategy, parts.optimizer, parts.precision, None)
    parts.train(range(1))
    saver.approve(1)
    saver.save(TrainState(step=1, samples=16))
    saver.finish(TrainState(step=1), is_final=True)
    memory = weakref.ref(saver._snapshot)
    del saver
    gc.collect()
    assert memory() is None, "its thread must not hold it"


def test_what_is_saved_is_not_saved_again(make_context: Callable[..., Context]) -> None:
    context, parts = make_context({"checkpoint": {}}), build_parts(1)
    choose_start(context)
    saver = Saver(context, parts.strategy, parts.optimizer, parts.precision, TrainState(step=4))
    for step in (4, 6, 6):
        saver.approve(step)
        saver.save(TrainState(step=step))
    saver.finish(TrainState(step=6), is_final=False)
    assert steps_saved(context.layout) == [6]
    assert len([event for event in read_records(context.layout.events) if event["kind"] == "checkpoint"]) == 1


def test_a_step_is_saved_again_when_its_evaluation_comes_later(make_context: Callable[..., Context]) -> None:
    context, parts = make_context({"checkpoint": {}}), build_parts(1)
    choose_start(context)
    saver = Saver(context, parts.strategy, parts.optimizer, parts.precision, TrainState(step=4))
    saver.approve(6)
    saver.save(TrainState(step=6))
    evaluated = TrainState(step=6, evaluated_step=6, best=0.5, best_step=6)
    saver.approve(6)
    saver.save(evaluated)
    saver.finish(evaluated, is_final=True)
    assert steps_saved(context.layout) == [6]
    assert read_state(read_checkpoint(context.layout.checkpoints / "final")) == evaluated
    assert (context.layout.checkpoints / "best").readlink().name == "step_00000006"


def test_without_checkpoints_nothing_is_written(train: Callable[..., Trainer], tmp_path: Path) -> None:
    train(4, enabled=False, every_steps=2)
    assert not (tmp_path / "checkpoints").exists()


def full_by_statvfs(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """The disk says that it has no room while these steps are saved."""
    real = os.statvfs
    saving: list[int] = []
    begin = saver_module.saving_directory

    def note_step(layout: RunLayout, step: int, attempt: int, count: int) -> Path:
        saving.append(step)
        return begin(layout, step, attempt, count)

    def little(path: Path) -> os.statvfs_result:
        fields = list(real(path))
        fields[4] = 1 if saving[-1] in steps else fields[4]  # f_bavail
        return os.statvfs_result(fields)

    monkeypatch.setattr(saver_module, "saving_directory", note_step)
    monkeypatch.setattr(os, "statvfs", little)


def full_by_write(monkeypatch: pytest.MonkeyPatch, steps: set[int], name: str) -> None:
    """The disk is full after 20 bytes of this file, while these steps are saved."""
    real_write, write_file = os.write, writer_module.write_file
    room = threading.local()

    def write(descriptor: int, data) -> int:
        left = getattr(room, "left", None)
        if left is None:
            return real_write(descriptor, data)
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room.left -= (written := real_write(descriptor, bytes(data[:left])))
        return written

    def write_limited(path: str, pieces):
        if path.endswith(f"/{name}") and any(f"step_{step:08d}-" in path for step in steps):
            room.left = 20
        try:
            return write_file(path, pieces)
        finally:
            room.left = None

    monkeypatch.setattr(writer_module, "write_file", write_limited)
    monkeypatch.setattr(os, "write", write)


FULL = {
    "no room": full_by_statvfs,
    "in the shard": lambda patch, steps: full_by_write(patch, steps, "shard-00000.safetensors"),
    "in the state": lambda patch, steps: full_by_write(patch, steps, "state.json"),
}


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_disk_that_is_full_for_a_while(
    train: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, asynchronous: bool
) -> None:
    FULL[kind](monkeypatch, {4, 6})
    trainer = train(10, every_steps=2, keep=9, asynchronous=asynchronous)
    layout = RunLayout(tmp_path)
    assert trainer.state.step == 10
    assert steps_saved(layout) == [2, 8, 10]
    assert leftovers(layout) == []
    first, second = warnings(layout)
    assert "the checkpoint of step 4 was not saved" in first
    assert "the checkpoint of step 6 was not saved" in second
    assert "No space left on device" in first
    assert (layout.checkpoints / "final").readlink().name == "step_00000010"


def test_a_directory_that_somebody_took_away_is_made_again(
    train: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, real = RunLayout(tmp_path), Writer._write_snapshot

    def take_away(self, save, shard):
        if save.state.step == 6:
            shutil.rmtree(layout.checkpoints)
        return real(self, save, shard)

    monkeypatch.setattr(Writer, "_write_snapshot", take_away)
    train(8, every_steps=2, keep=9, asynchronous=False)
    assert steps_saved(layout) == [6, 8]
    assert warnings(layout) == []


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("kind", FULL)
def test_when_the_last_save_fails_the_run_has_failed(
    train: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, asynchronous: bool
) -> None:
    layout = RunLayout(tmp_path)
    with monkeypatch.context() as patch:
        FULL[kind](patch, {6})
        with pytest.raises(
            StorageError, match=r"the last checkpoint \(step 6\) was not saved.*No space left"
        ) as caught:
            train(6, every_steps=2, asynchronous=asynchronous)
    assert caught.value.exit_code == 4
    assert "free some space" in caught.value.problems[0].do
    assert steps_saved(layout) == [2, 4]
    assert (layout.checkpoints / "latest").readlink().name == "step_00000004"
    assert not (layout.checkpoints / "final").exists()
    assert leftovers(layout) == []
    train(6, every_steps=2)
    assert steps_saved(layout) == [2, 4, 6]


def test_a_disk_that_is_really_full(
    train: Callable[..., Trainer], mount_disk: Callable[[Path, str], None], tmp_path: Path
) -> None:
    layout = RunLayout(tmp_path)
    mount_disk(layout.checkpoints, "size=16m")
    filler = layout.checkpoints / "somebody.else"
    train(2, every_steps=2)
    filler.write_bytes(b"x" * (10 << 20))
    with pytest.raises(StorageError, match="No space left"):
        train(6, every_steps=2)
    assert steps_saved(layout) == [2]
    assert leftovers(layout) == []
    filler.unlink()
    train(6, every_steps=2)
    assert steps_saved(layout) == [2, 4, 6]


def test_a_disk_that_fills_up_although_it_seemed_to_have_room(
    train: Callable[..., Trainer],
    mount_disk: Callable[[Path, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real failures of every write: of the shard, the state, the marks, the manifest."""
    monkeypatch.setattr(writer_module, "check_room", lambda directory, num_bytes: None)
    layout = RunLayout(tmp_path)
    page = os.sysconf("SC_PAGESIZE")
    mount_disk(layout.checkpoints, "size=256k")
    filler = layout.checkpoints / "somebody.else"
    train(2, every_steps=2)
    for room in range(6):  # a checkpoint of this model takes four pages or more
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * page)
        os.truncate(filler, max(0, filler.stat().st_size - room * page))
        with contextlib.suppress(StorageError):
            train(4, every_steps=2)
        assert steps_saved(layout) in ([2], [2, 4])
        assert leftovers(layout) == [], room
        if steps_saved(layout) == [2, 4]:
            break
        assert "the checkpoint of step 4 was not saved" in warnings(layout)[-1]
    assert room >= 2, "some saves failed in the middle"
    filler.unlink()
    train(6, every_steps=2)
    assert steps_saved(layout)[-1] == 6


@pytest.mark.parametrize("guilty", [{0}, {1}, {0, 1}])
@pytest.mark.parametrize("slow", [0, 1])
def test_two_ranks_leave_nothing_of_a_save_that_failed(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch, guilty: set[int], slow: int
) -> None:
    """Whoever is late must not write into, or make again, what rank 0 has taken away."""
    monkeypatch.setattr(shard, "_LEAST_BYTES", 1)
    contexts = [make_context({"checkpoint": {}}, rank=rank, world_size=2) for rank in range(2)]
    layout, parts = contexts[0].layout, build_parts(1)
    choose_start(contexts[0])
    parts.train(range(1))
    savers = [Saver(context, parts.strategy, parts.optimizer, parts.precision, None) for context in contexts]
    failing = [True]
    write_file = writer_module.write_file

    def write(path: str, pieces):
        _, is_shard, number = path.rpartition("/shard-")
        rank = int(number[:5]) if is_shard else None
        if rank == slow:
            threading.Event().wait(0.1)
        if failing[0] and rank in guilty:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_file(path, pieces)

    monkeypatch.setattr(writer_module, "write_file", write)
    for saver in savers:
        saver.approve(3)
        saver.save(TrainState(step=3))
    for rank, saver in enumerate(savers):
        if rank == 0 or rank in guilty:
            with pytest.raises(StorageError, match="No space left"):
                saver.finish(TrainState(step=3), is_final=False)
        else:
            saver.finish(TrainState(step=3), is_final=False)
    assert names_below(layout.checkpoints) == set()
    failing[0] = False
    for saver in savers:
        saver.approve(4)
        saver.save(TrainState(step=4))
    for saver in savers:
        saver.finish(TrainState(step=4), is_final=False)
    assert names_below(layout.checkpoints) == {"step_00000004", "latest"}
    assert steps_saved(layout) == [4]
    assert len(read_checkpoint(layout.checkpoints / "latest").manifest.files) == 3
    assert len(warnings(layout)) == 1


def test_old_checkpoints_that_cannot_be_removed_are_told(
    train: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Retention, "retire", refuse)
    train(6, every_steps=2, keep=1)
    layout = RunLayout(tmp_path)
    assert steps_saved(layout) == [2, 4, 6]
    events = read_records(layout.events)
    assert {e["what"] for e in events if e["kind"] == "warning"} == {
        "older checkpoints could not be removed: Permission denied"
    }
    assert [e["step"] for e in events if e["kind"] == "checkpoint"] == [2, 4, 6]
