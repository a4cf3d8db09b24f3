"""Makes a saved checkpoint visible, and takes old ones away: rank 0's part of a save, on files alone.

Every rank writes its shard into a hidden directory and a small `.done` file beside it. Rank 0 waits for all of them, writes the
manifest last, and renames the directory: a checkpoint is whole or not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from paceline.errors import CheckpointError, UsageError
from paceline.files import Lock, read_json, write_json
from paceline.telemetry.checkpoints import (
    LINKS,
    FileEntry,
    Manifest,
    list_checkpoints,
    read_checkpoint,
    step_name,
    write_manifest,
)
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import load_run_file

_POLL_S = 0.01
_FENCE_S = 30.0
_SAVING, _REMOVING, _REPLACED = ".saving-", ".removing-", ".replaced-"


class SaveFailed(Exception):
    """A save that came to nothing; the checkpoints before it are untouched."""


def saving_directory(layout: RunLayout, step: int, attempt: int, count: int) -> Path:
    """Where the ranks of one attempt collect the files of one save."""
    return layout.checkpoints / f"{_SAVING}{step_name(step)}-{attempt}-{count}"


def report_done(shard: Path, entry: FileEntry) -> None:
    """Tells rank 0 that a shard is on the disk."""
    write_json(shard.with_name(f"{shard.name}.done"), asdict(entry))


def report_failed(shard: Path, error: OSError) -> None:
    """Tells rank 0 that a shard will not come, and why; in a name, because a full disk takes no more."""
    with contextlib.suppress(OSError):
        shard.parent.mkdir(exist_ok=True)
        shard.with_name(f"{shard.name}.failed-{error.errno or 0}").touch()


def wait_for_shards(directory: Path, names: Sequence[str], timeout_s: float) -> dict[str, FileEntry]:
    """The entries of all shards; SaveFailed if one will not come, but only when no rank writes any more: it would be left behind."""
    deadline = time.monotonic() + timeout_s
    entries: dict[str, FileEntry] = {}
    failures: dict[str, str] = {}
    while True:
        for name in names:
            if name in entries or name in failures:
                continue
            for failed in directory.glob(f"{name}.failed-*"):
                failures[name] = os.strerror(int(failed.name.rpartition("-")[2]))
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                entries[name] = FileEntry(**read_json(directory / f"{name}.done"))
        missing = [name for name in names if name not in entries and name not in failures]
        if not missing:
            break
        if not directory.is_dir():
            raise SaveFailed("its directory could not be made, or was taken away")
        if time.monotonic() > deadline:
            raise SaveFailed(f"{', '.join(missing)} did not come within {timeout_s:g} s")
        time.sleep(_POLL_S)
    if failures:
        raise SaveFailed("; ".join(f"{name}: {reason}" for name, reason in failures.items()))
    return entries


def publish(layout: RunLayout, directory: Path, manifest: Manifest, best_step: int | None) -> Path:
    """Writes the manifest and gives the directory its name, unless a later attempt owns the run by now."""
    for mark in directory.glob("*.done"):
        mark.unlink()
    sync_directory(directory)
    write_manifest(directory, manifest)
    sync_directory(directory)
    target = layout.checkpoints / step_name(manifest.step)
    replaced = layout.checkpoints / f"{_REPLACED}{target.name}"
    fence = Lock(layout.attempt_lock)
    try:
        # Whoever begins an attempt writes run.json under this lock: either we are visible before it, or we see that we are late.
        if not fence.acquire_within(_FENCE_S):
            raise SaveFailed("somebody holds the lock of the run")
        run = load_run_file(layout.root)
        if run is None or run.attempts[-1].attempt != manifest.attempt:
            raise SaveFailed(f"attempt {manifest.attempt} is over: a later one owns the run")
        if (
            target.exists()
        ):  # the same step, saved again with its evaluation: out of sight, to be put back if we are killed here
            os.rename(target, replaced)
        os.rename(directory, target)
        refresh_links(layout, manifest.step, best_step)
    finally:
        fence.release()
    sync_directory(layout.checkpoints)
    shutil.rmtree(replaced, ignore_errors=True)
    return target


def refresh_links(layout: RunLayout, step: int, best_step: int | None, final_step: int | None = None) -> dict[str, str]:
    """Points the links to where they belong, and takes away those whose checkpoint is gone; which could not be set, and why.

    Links are for people: nothing is resumed from them, and a file system without them is no reason to stop.
    """
    unset = {}
    for word, target in (("latest", step), ("best", best_step), ("final", final_step)):
        try:
            _link(layout, word, target)
        except OSError as error:
            unset[word] = error.strerror or str(error)
    return unset


def _link(layout: RunLayout, word: str, step: int | None) -> None:
    path = layout.checkpoints / word
    if step is not None and (layout.checkpoints / step_name(step)).is_dir():
        temporary = layout.checkpoints / f".{word}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(step_name(step))
        try:
            os.replace(temporary, path)
        except OSError:
            temporary.unlink()
            raise
    elif path.is_symlink() and not path.exists():
        path.unlink()


def warn_unset(events: EventLog, layout: RunLayout, unset: Mapping[str, str]) -> None:
    """Says which links could not be set."""
    if unset:
        words = "; ".join(f"{word}: {reason}" for word, reason in unset.items())
        events.write(
            "warning", what=f"a link to a checkpoint could not be set ({words})", where=str(layout.checkpoints)
        )


def retire(layout: RunLayout, keep: int, best_step: int | None) -> list[int]:
    """Removes all but the newest `keep` checkpoints, the best, and those that a link names; their steps.

    A damaged one counts for nothing and stays.
    """
    spared = {(layout.checkpoints / word).resolve().name for word in LINKS}
    if best_step is not None:
        spared.add(step_name(best_step))
    whole = []
    for path in list_checkpoints(layout.checkpoints):
        with contextlib.suppress(CheckpointError, UsageError):
            whole.append((read_checkpoint(path).step, path))
    removed = []
    for step, path in whole[keep:]:
        if path.name not in spared:
            # Out of sight first: what is half removed must not look like a damaged checkpoint.
            hidden = path.with_name(f"{_REMOVING}{path.name}")
            shutil.rmtree(hidden, ignore_errors=True)
            os.rename(path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)
            removed.append(step)
    return removed


def remove_leftovers(layout: RunLayout) -> None:
    """Takes away what killed saves and removals left, and puts back what was to be replaced; when no save is under way."""
    for path in layout.checkpoints.glob(f"{_REPLACED}*"):
        target = path.with_name(path.name.removeprefix(_REPLACED))
        if target.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.rename(path, target)
    for prefix in (_SAVING, _REMOVING):
        for path in layout.checkpoints.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)
    for word in LINKS:
        for path in layout.checkpoints.glob(f".{word}.*"):
            path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Names on the disk, too: after a power cut a file without its name is gone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
