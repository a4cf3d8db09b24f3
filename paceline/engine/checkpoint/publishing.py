"""Makes a saved checkpoint visible: how the ranks tell each other, and rank 0's part, on files alone.

Every rank writes its shard into a hidden directory, and then an empty file beside it whose name says what became of it. Rank 0 waits for
all of them, writes the manifest last, and renames the directory: a checkpoint is whole or not there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.engine.checkpoint.fence import Fence, SaveFailed
from paceline.engine.checkpoint.keeping import REPLACED, refresh_links
from paceline.telemetry.checkpoints import EncodedFields, FileEntry, Manifest, step_name, write_manifest
from paceline.telemetry.layout import RunLayout

# In names, because a full disk takes no more than those.
_DONE, _FAILED = ".done-", ".failed-"
_POLL_S = 0.01


def report_done(shard: str | Path, entry: FileEntry) -> None:
    """Tells rank 0 that a shard is on the disk."""
    Path(f"{shard}{_DONE}{entry.bytes}-{entry.crc32}").touch()


def report_failed(shard: str | Path, error: OSError) -> None:
    """Tells rank 0 that a shard will not come, and why."""
    with contextlib.suppress(OSError):
        message = Path(f"{shard}{_FAILED}{error.errno or 0}")
        message.parent.mkdir(exist_ok=True)
        message.touch()


def wait_for_shards(
    directory: str | Path, names: Sequence[str], timeout_s: float, own: Mapping[str, FileEntry] | None = None
) -> dict[str, FileEntry]:
    """The entries of all shards, of which `own` are known; what told of the others is taken away.

    SaveFailed if one will not come, but only when no rank writes any more: it would be left behind.
    """
    deadline = time.monotonic() + timeout_s
    entries = dict(own or {})
    failures: dict[str, str] = {}
    messages: list[str] = []
    missing = [name for name in names if name not in entries]
    while missing:
        try:
            there = os.listdir(directory)
        except FileNotFoundError as error:
            raise SaveFailed("its directory could not be made, or was taken away") from error
        for file in there:
            name, _, code = file.partition(_FAILED)
            if code and name in missing:
                failures[name] = os.strerror(int(code))
            name, _, code = file.partition(_DONE)
            if code and name in missing:
                entries[name] = FileEntry(*map(int, code.split("-")))
                messages.append(file)
        missing = [name for name in missing if name not in entries and name not in failures]
        if missing:
            if time.monotonic() > deadline:
                raise SaveFailed(f"{', '.join(missing)} did not come within {timeout_s:g} s")
            time.sleep(_POLL_S)
    if failures:
        raise SaveFailed("; ".join(f"{name}: {reason}" for name, reason in failures.items()))
    for file in messages:
        os.unlink(f"{directory}/{file}")
    return {name: entries[name] for name in names}


class Publisher:
    """Rank 0's, for all saves of one attempt."""

    def __init__(self, layout: RunLayout, attempt: int) -> None:
        self._layout = layout
        self._checkpoints = str(layout.checkpoints)
        self._fence = Fence(layout, attempt)
        self._encoded: EncodedFields = {}

    def publish(self, directory: str | Path, manifest: Manifest, best_step: int | None) -> None:
        """Writes the manifest and gives the directory its name, unless a later attempt owns the run by now."""
        write_manifest(directory, manifest, self._encoded)
        sync_directory(directory)
        name = step_name(manifest.step)
        target, replaced = f"{self._checkpoints}/{name}", f"{self._checkpoints}/{REPLACED}{name}"
        with self._fence:
            # The same step, saved again with its evaluation: out of sight, to be put back if we are killed here.
            is_again = os.path.exists(target)
            if is_again:
                os.rename(target, replaced)
            os.rename(directory, target)
            refresh_links(self._layout, manifest.step, best_step)
        sync_directory(self._checkpoints)
        if is_again:
            shutil.rmtree(replaced, ignore_errors=True)


def sync_directory(directory: str | Path) -> None:
    """Names on the disk, too: after a power cut a file without its name is gone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
