"""Makes a saved checkpoint visible: how the ranks tell each other, and rank 0's part, on files alone.

Every rank writes its shard into a hidden directory, and then an empty file beside it whose name says what became of it. Rank 0 waits for
all of them, writes the manifest last, and renames the directory: a checkpoint is whole or not there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.engine.checkpoint.keeping import REPLACED, refresh_links
from paceline.files import Lock
from paceline.telemetry.checkpoints import FileEntry, Manifest, step_name, write_manifest
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import load_run_file

# In names, because a full disk takes no more than those.
_DONE, _FAILED = ".done-", ".failed-"
_POLL_S = 0.01
_FENCE_S = 30.0


class SaveFailed(Exception):
    """A save that came to nothing; the checkpoints before it are untouched."""


def report_done(shard: Path, entry: FileEntry) -> None:
    """Tells rank 0 that a shard is on the disk."""
    shard.with_name(f"{shard.name}{_DONE}{entry.bytes}-{entry.crc32}").touch()


def report_failed(shard: Path, error: OSError) -> None:
    """Tells rank 0 that a shard will not come, and why."""
    with contextlib.suppress(OSError):
        shard.parent.mkdir(exist_ok=True)
        shard.with_name(f"{shard.name}{_FAILED}{error.errno or 0}").touch()


def wait_for_shards(directory: Path, names: Sequence[str], timeout_s: float) -> dict[str, FileEntry]:
    """The entries of all shards; SaveFailed if one will not come, but only when no rank writes any more: it would be left behind."""
    deadline = time.monotonic() + timeout_s
    entries: dict[str, FileEntry] = {}
    failures: dict[str, str] = {}
    while True:
        try:
            there = os.listdir(directory)
        except FileNotFoundError as error:
            raise SaveFailed("its directory could not be made, or was taken away") from error
        for file in there:
            name, _, code = file.partition(_FAILED)
            if code and name in names:
                failures[name] = os.strerror(int(code))
            name, _, code = file.partition(_DONE)
            if code and name in names:
                entries[name] = FileEntry(*map(int, code.split("-")))
        missing = [name for name in names if name not in entries and name not in failures]
        if not missing:
            break
        if time.monotonic() > deadline:
            raise SaveFailed(f"{', '.join(missing)} did not come within {timeout_s:g} s")
        time.sleep(_POLL_S)
    if failures:
        raise SaveFailed("; ".join(f"{name}: {reason}" for name, reason in failures.items()))
    return entries


def publish(layout: RunLayout, directory: Path, manifest: Manifest, best_step: int | None) -> Path:
    """Writes the manifest and gives the directory its name, unless a later attempt owns the run by now."""
    for file in os.listdir(directory):
        if _DONE in file:
            os.unlink(directory / file)
    sync_directory(directory)
    write_manifest(directory, manifest)
    sync_directory(directory)
    target = layout.checkpoints / step_name(manifest.step)
    replaced = layout.checkpoints / f"{REPLACED}{target.name}"
    fence = Lock(layout.attempt_lock)
    try:
        # Whoever begins an attempt writes run.json under this lock: either we are visible before it, or we see that we are late.
        if not fence.acquire_within(_FENCE_S):
            raise SaveFailed("somebody holds the lock of the run")
        run = load_run_file(layout.root)
        if run is None or run.attempts[-1].attempt != manifest.attempt:
            raise SaveFailed(f"attempt {manifest.attempt} is over: a later one owns the run")
        # The same step, saved again with its evaluation: out of sight, to be put back if we are killed here.
        if target.exists():
            os.rename(target, replaced)
        os.rename(directory, target)
        refresh_links(layout, manifest.step, best_step)
    finally:
        fence.release()
    sync_directory(layout.checkpoints)
    shutil.rmtree(replaced, ignore_errors=True)
    return target


def sync_directory(directory: Path) -> None:
    """Names on the disk, too: after a power cut a file without its name is gone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
