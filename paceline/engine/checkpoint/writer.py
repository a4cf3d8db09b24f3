"""What a save does behind the training, in the thread of each rank: its shard, and on rank 0 everything that makes a checkpoint of them.

A training whose steps wait for Python loses every microsecond that this thread runs in it, because both need the interpreter's lock; only
checksums, writes and the disk cost it nothing. So nothing is worked out here that was so at the save before.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import paceline
from paceline.engine.checkpoint.approval import Approval
from paceline.engine.checkpoint.fence import SaveFailed
from paceline.engine.checkpoint.keeping import Retention
from paceline.engine.checkpoint.publishing import Publisher, report_done, report_failed, wait_for_shards
from paceline.engine.checkpoint.shard import check_room, write_file
from paceline.engine.checkpoint.snapshot import Snapshot
from paceline.engine.context import Context
from paceline.engine.state import TrainState
from paceline.errors import PacelineError
from paceline.telemetry.checkpoints import STATE, FileEntry, Manifest, shard_name, step_name

_LINES = json.JSONEncoder(separators=(",\n  ", ": "))


@dataclass(frozen=True)
class Share:
    """What this rank writes of the run's tensors; worked out once, because names, shapes and types stay as they are."""

    names: Sequence[str]
    """of all tensors"""
    shards: Sequence[Sequence[str]]
    mine: Sequence[str]
    volatile: Sequence[bool]
    num_bytes: int
    header: bytes
    files: Sequence[str]
    """of the shards"""
    places: dict[str, str]
    """tensor -> the file it is in"""


@dataclass(frozen=True)
class Save:
    """One save under way, as this rank sees it."""

    state: TrainState
    directory: str
    share: Share
    stall_ms: float
    began: float
    wrote: list[float] = field(default_factory=list)
    """seconds, when this rank's part is written"""


class Writer:
    """Writes one save after another from the snapshot; says when that is read, because it is needed for the next one."""

    def __init__(self, context: Context, snapshot: Snapshot, approval: Approval, set_free: Callable[[], None]) -> None:
        self._context = context
        self._rank, self._is_first = context.ranks.rank, context.ranks.is_first
        self._checkpoints = str(context.layout.checkpoints)
        self._snapshot, self._approval, self._set_free = snapshot, approval, set_free
        self._publisher = Publisher(context.layout, context.attempt)
        self._retention = Retention(context.layout, context.config.checkpoint.keep)

    def write(self, save: Save) -> str | None:
        """Why it failed, or None."""
        try:
            entry, failure = self._write_shard(save)
            if self._is_first:
                if failure is not None and not os.path.isdir(save.directory):
                    raise SaveFailed(failure)  # nowhere to wait for the others
                self._publish(save, {} if entry is None else {save.share.files[0]: entry})
            return failure
        except (OSError, SaveFailed, PacelineError) as error:
            reason = _reason(error)
            shutil.rmtree(save.directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._context.events.write(
                    "warning",
                    what=f"the checkpoint of step {save.state.step} was not saved: {reason}",
                    where=self._checkpoints,
                    why="training goes on; the checkpoints before it are as they were",
                )
            return reason

    def _write_shard(self, save: Save) -> tuple[FileEntry | None, str | None]:
        """What this rank's shard is, or why it will not come; rank 0 hears either."""
        shard = f"{save.directory}/{shard_name(self._rank)}"
        try:
            entry = self._write_snapshot(save, shard)
            if entry is not None and not self._is_first:
                report_done(shard, entry)
            return entry, None
        except OSError as error:
            report_failed(shard, error)
            return None, _reason(error)

    def _write_snapshot(self, save: Save, shard: str) -> FileEntry | None:
        """None: this rank has no share in a state so small."""
        try:
            if self._rank >= len(save.share.shards):
                return None
            self._make_directory(save.directory)
            check_room(self._checkpoints, len(save.share.header) + self._snapshot.num_bytes)
            return write_file(shard, [save.share.header, *self._snapshot.read()])
        finally:
            save.wrote.append(time.perf_counter() - save.began)
            # Once, and here: a moment later it may hold the next save, which nobody has read yet.
            self._set_free()

    def _make_directory(self, directory: str) -> None:
        with contextlib.suppress(FileExistsError):  # another rank was here first
            try:
                os.mkdir(directory)
            except FileNotFoundError:
                # Somebody took all checkpoints away: the next ones are all the more wanted.
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._checkpoints)
                os.mkdir(directory)

    def _publish(self, save: Save, own: Mapping[str, FileEntry]) -> None:
        context, state = self._context, save.state
        # Given up before the other ranks, who may wait for this one in a collective, give up.
        files = wait_for_shards(save.directory, save.share.files, context.config.parallel.timeout_s / 2, own)
        files[STATE] = write_file(f"{save.directory}/{STATE}", [_encode_state(state)])
        if not self._approval.await_step(state.step):
            raise SaveFailed("its step was not good")  # when the run goes on, that step must not be behind it
        manifest = Manifest(
            step=state.step,
            run=context.run.id,
            attempt=context.attempt,
            world_size=context.ranks.world_size,
            paceline=paceline.__version__,
            identity=context.run.identity,
            files=files,
            tensors=save.share.places,
            software=context.software,
        )
        self._publisher.publish(save.directory, manifest, state.best_step)
        with contextlib.suppress(OSError):  # it is saved, also where nothing more can be written
            self._record(save, manifest, self._retire(state))

    def _retire(self, state: TrainState) -> list[int]:
        try:
            return self._retention.retire(state.step, state.best_step)
        except (OSError, PacelineError) as error:
            what = f"older checkpoints could not be removed: {_reason(error)}"
            self._context.events.write("warning", what=what, where=self._checkpoints)
            return []

    def _record(self, save: Save, manifest: Manifest, removed: list[int]) -> None:
        self._context.events.write(
            "checkpoint",
            step=save.state.step,
            name=step_name(save.state.step),
            is_best=save.state.best_step == save.state.step,
            bytes=manifest.num_bytes,
            shards=len(save.share.shards),
            stall_ms=round(save.stall_ms, 3),
            seconds=round(time.perf_counter() - save.began, 3),
            removed=[step_name(step) for step in removed],
        )


def _encode_state(state: TrainState) -> bytes:
    """As json.dumps has it with an indent, which is not written in C."""
    return f"{{\n  {_LINES.encode(vars(state))[1:-1]}\n}}\n".encode()


def _reason(error: Exception) -> str:
    if isinstance(error, PacelineError):
        return error.problems[0].what
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
