"""Making a checkpoint visible: by its own attempt alone, when every shard is there; old ones go, the last good ones stay."""

from __future__ import annotations

import dataclasses
import errno
import threading
import time
import zlib
from pathlib import Path

import pytest

from paceline.engine.checkpoint import keeping
from paceline.engine.checkpoint.fence import SaveFailed
from paceline.engine.checkpoint.keeping import Retention, refresh_links, remove_leftovers, saving_directory
from paceline.engine.checkpoint.publishing import Publisher, report_done, report_failed, wait_for_shards
from paceline.files import Lock
from paceline.telemetry.checkpoints import (
    MANIFEST,
    STATE,
    FileEntry,
    Manifest,
    check_files,
    read_checkpoint,
    shard_name,
    step_name,
    write_manifest,
)
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile
from tests.engine.checkpoint.conftest import names_below

IDENTITY = {"fingerprint": "aa", "values": {}}


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path)
    layout.checkpoints.mkdir()
    begin_attempt(layout, 1)
    return layout


def begin_attempt(layout: RunLayout, number: int) -> None:
    run = RunFile("0123456789ab", "regression", "", "0", 0.0, IDENTITY)
    run.attempts.extend(Attempt(each, 1, 1, 0.0, "", []) for each in range(1, number + 1))
    run.save(layout)


def prepare(layout: RunLayout, step: int, attempt: int = 1, count: int = 1) -> tuple[Path, Manifest]:
    """A save of one shard that is ready to be published."""
    directory = saving_directory(layout, step, attempt, count)
    directory.mkdir()
    files = {}
    for name in (shard_name(0), STATE):
        content = f"{name} of step {step}".encode()
        (directory / name).write_bytes(content)
        files[name] = FileEntry(len(content), zlib.crc32(content))
    return directory, Manifest(step, "0123456789ab", attempt, 1, "0", IDENTITY, files, {"model.w": shard_name(0)})


def publish(layout: RunLayout, directory: Path, manifest: Manifest) -> Path:
    Publisher(layout, manifest.attempt).publish(directory, manifest, best_step=None)
    return layout.checkpoints / step_name(manifest.step)


def save(layout: RunLayout, step: int, attempt: int = 1) -> Path:
    return publish(layout, *prepare(layout, step, attempt))


def test_what_is_published_is_whole_and_nothing_else_is_there(layout: RunLayout) -> None:
    directory, manifest = prepare(layout, 5)
    assert names_below(layout.checkpoints) == {directory.name}
    path = publish(layout, directory, manifest)
    assert names_below(layout.checkpoints) == {"step_00000005", "latest"}
    assert names_below(path) == {MANIFEST, STATE, shard_name(0)}
    check_files(read_checkpoint(path))


def test_an_attempt_that_is_over_makes_nothing_visible(layout: RunLayout) -> None:
    save(layout, 5)
    directory, manifest = prepare(layout, 10, attempt=1)
    begin_attempt(layout, 2)
    other, later = prepare(layout, 10, attempt=2)
    run_file = layout.run.read_bytes()
    with pytest.raises(SaveFailed, match="attempt 1 is over"):
        publish(layout, directory, manifest)
    assert names_below(layout.checkpoints) == {"step_00000005", "latest", directory.name, other.name}
    assert layout.run.read_bytes() == run_file
    publish(layout, other, later)
    found = read_checkpoint(layout.checkpoints / "step_00000010")
    check_files(found)
    assert found.manifest.attempt == 2


def test_a_run_that_is_gone_gets_no_checkpoint(layout: RunLayout) -> None:
    directory, manifest = prepare(layout, 5)
    layout.run.unlink()
    with pytest.raises(SaveFailed, match="is not there"):
        publish(layout, directory, manifest)
    assert names_below(layout.checkpoints) == {directory.name}


def test_who_begins_an_attempt_is_waited_for(layout: RunLayout) -> None:
    """Either the checkpoint is visible before the new attempt, or it never is: no moment in between."""
    directory, manifest = prepare(layout, 5)
    lock = Lock(layout.attempt_lock)
    assert lock.acquire()
    caught: list[Exception] = []

    def late() -> None:
        try:
            publish(layout, directory, manifest)
        except SaveFailed as error:
            caught.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    deadline = time.monotonic() + 20
    while not (directory / MANIFEST).exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    begin_attempt(layout, 2)
    assert names_below(layout.checkpoints) == {directory.name}
    lock.release()
    thread.join(20)
    assert "a later one owns the run" in str(caught[0])
    assert names_below(layout.checkpoints) == {directory.name}


def test_shards_are_waited_for(layout: RunLayout) -> None:
    directory = saving_directory(layout, 5, 1, 1)
    directory.mkdir()
    names = [shard_name(0), shard_name(1)]
    report_done(directory / names[0], FileEntry(3, 4))
    with pytest.raises(SaveFailed, match=r"^shard-00001.safetensors did not come within 0.05 s"):
        wait_for_shards(directory, names, 0.05)
    timer = threading.Timer(0.05, report_done, (directory / names[1], FileEntry(5, 6)))
    timer.start()
    assert wait_for_shards(directory, names, 20) == {names[0]: FileEntry(3, 4), names[1]: FileEntry(5, 6)}
    timer.join()
    assert names_below(directory) == set(), "what told of them"


def test_a_shard_that_will_not_come_is_told_when_nobody_writes_any_more(layout: RunLayout) -> None:
    directory = saving_directory(layout, 5, 1, 1)
    names = [shard_name(index) for index in range(3)]
    report_failed(directory / names[1], OSError(errno.ENOSPC, ""))
    report_done(directory / names[0], FileEntry(3, 4))
    with pytest.raises(SaveFailed, match=r"shard-00002\.safetensors did not come"):
        wait_for_shards(directory, names, 0.05)
    report_failed(directory / names[2], OSError(errno.EIO, ""))
    with pytest.raises(SaveFailed) as caught:
        wait_for_shards(directory, names, 20)
    assert (
        str(caught.value)
        == "shard-00001.safetensors: No space left on device; shard-00002.safetensors: Input/output error"
    )


def test_without_a_directory_there_is_nothing_to_wait_for(layout: RunLayout) -> None:
    with pytest.raises(SaveFailed, match="could not be made"):
        wait_for_shards(layout.checkpoints / ".saving-x", [shard_name(0)], 20)


def test_old_ones_go_and_what_a_link_names_stays(layout: RunLayout) -> None:
    for step in range(1, 7):
        save(layout, step)
    assert refresh_links(layout, 6, best_step=None, final_step=3) == {}
    (layout.checkpoints / step_name(5) / MANIFEST).write_text("cut")
    assert Retention(layout, keep=2).retire(6, best_step=2) == [1]  # 6 and 4 are the newest two that count
    assert names_below(layout.checkpoints) == {step_name(n) for n in (2, 3, 4, 5, 6)} | {"latest", "final"}
    assert Retention(layout, keep=1).retire(6, best_step=2) == [4]
    check_files(read_checkpoint(layout.checkpoints / "latest"))


def test_manifests_are_read_again_when_they_have_changed_and_only_then(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = keeping.read_checkpoint
    monkeypatch.setattr(keeping, "read_checkpoint", lambda path: (read.append(path.name), real(path))[1])
    for step in (1, 2):
        save(layout, step)
    retention = Retention(layout, keep=3)
    for step in (3, 4):
        save(layout, step)
        retention.retire(step, best_step=None)
    assert read == [step_name(2), step_name(1)], "not what it knows was saved, and nothing twice"
    (layout.checkpoints / step_name(3) / MANIFEST).write_text("cut")
    save(layout, 5)
    assert retention.retire(5, best_step=None) == []  # 5, 4 and 2 are the newest three that count
    assert read[2:] == [step_name(3)]
    save(layout, 6)
    assert retention.retire(6, best_step=None) == [2]
    assert read[3:] == []
    assert names_below(layout.checkpoints) == {step_name(n) for n in (3, 4, 5, 6)} | {"latest"}


def test_a_checkpoint_with_something_strange_in_it_can_be_removed(layout: RunLayout) -> None:
    (save(layout, 1) / "notes").mkdir()
    (layout.checkpoints / ".removing-step_00000001" / "left").mkdir(parents=True)
    save(layout, 2)
    assert Retention(layout, keep=1).retire(2, best_step=None) == [1]
    assert names_below(layout.checkpoints) == {step_name(2), "latest"}


def test_one_publisher_publishes_many(layout: RunLayout) -> None:
    """Fields that stay are encoded once; those of each manifest are its own."""
    publisher = Publisher(layout, 1)
    for step in (1, 2, 3):
        directory, manifest = prepare(layout, step)
        publisher.publish(directory, manifest, best_step=None)
        path = layout.checkpoints / step_name(step)
        assert read_checkpoint(path).manifest == manifest
        check_files(read_checkpoint(path))
        alone = path / MANIFEST
        written = alone.read_bytes()
        write_manifest(path, manifest)
        assert alone.read_bytes() == written


def test_links_lead_to_what_is_there(layout: RunLayout) -> None:
    save(layout, 1)
    save(layout, 2)
    refresh_links(layout, 2, best_step=1)
    assert {word: (layout.checkpoints / word).readlink().name for word in ("latest", "best")} == {
        "latest": "step_00000002",
        "best": "step_00000001",
    }
    refresh_links(layout, 2, best_step=9)
    assert (layout.checkpoints / "best").readlink().name == "step_00000001", "a step without a checkpoint"
    (layout.checkpoints / step_name(1)).rename(layout.checkpoints / "step_00000001.damaged")
    refresh_links(layout, 2, best_step=1)
    assert names_below(layout.checkpoints) == {"step_00000002", "step_00000001.damaged", "latest"}


def test_leftovers_go_and_everything_else_stays(layout: RunLayout) -> None:
    save(layout, 1)
    refresh_links(layout, 1, best_step=None)
    prepare(layout, 2)
    prepare(layout, 3)[0].rename(layout.checkpoints / ".removing-step_00000003")
    (layout.checkpoints / ".latest.4711").symlink_to("step_00000001")
    (layout.checkpoints / "step_00000009.damaged").mkdir()
    remove_leftovers(layout)
    assert names_below(layout.checkpoints) == {"step_00000001", "latest", "step_00000009.damaged"}


def test_what_cannot_be_linked_is_told_and_stops_nothing(layout: RunLayout) -> None:
    """A run that was copied with its links followed has directories where they were."""
    save(layout, 1)
    (layout.checkpoints / "latest").unlink()
    (layout.checkpoints / "latest").mkdir()
    assert refresh_links(layout, 1, best_step=1) == {"latest": "Is a directory"}
    assert (layout.checkpoints / "best").readlink().name == "step_00000001"
    assert names_below(layout.checkpoints) == {"step_00000001", "latest", "best"}


def test_a_step_that_is_saved_again_takes_the_place_of_the_first(layout: RunLayout) -> None:
    first = save(layout, 5)
    directory, manifest = prepare(layout, 5, count=2)
    (directory / "state.json").write_bytes(b"evaluated")
    files = manifest.files | {"state.json": FileEntry(9, zlib.crc32(b"evaluated"))}
    assert publish(layout, directory, dataclasses.replace(manifest, files=files)) == first
    assert names_below(layout.checkpoints) == {"step_00000005", "latest"}
    assert (first / "state.json").read_bytes() == b"evaluated"
    check_files(read_checkpoint(first))


def test_a_kill_between_the_old_and_the_new_one_loses_neither(layout: RunLayout) -> None:
    first = save(layout, 5)
    first.rename(layout.checkpoints / ".replaced-step_00000005")
    remove_leftovers(layout)
    check_files(read_checkpoint(first))
    (layout.checkpoints / ".replaced-step_00000005").mkdir()
    remove_leftovers(layout)
    assert names_below(layout.checkpoints) == {"step_00000005", "latest"}
