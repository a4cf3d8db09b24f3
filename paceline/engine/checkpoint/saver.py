"""Saves the state of a run while training goes on: a snapshot now, the files behind it in a thread of each rank.

saver.save(state)          # milliseconds; every rank calls it at the same step
saver.approve(state.step)  # when the result of that step is known to be good: only then does it become visible
saver.finish(state)        # at the end: waits for what is under way, and says so if the last save failed
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

import paceline
from paceline.engine.average import Average
from paceline.engine.checkpoint.keeping import refresh_links, retire, saving_directory, warn_unset
from paceline.engine.checkpoint.publishing import SaveFailed, publish, report_done, report_failed, wait_for_shards
from paceline.engine.checkpoint.shard import check_room, encode_header, plan_shards, write_file
from paceline.engine.checkpoint.snapshot import Snapshot
from paceline.engine.checkpoint.tensors import collect_tensors, find_writers, is_volatile
from paceline.engine.context import Context
from paceline.engine.precision import Precision
from paceline.engine.state import TrainState
from paceline.engine.strategies.base import Strategy
from paceline.errors import PacelineError, StorageError
from paceline.telemetry.checkpoints import STATE, FileEntry, Manifest, shard_name, step_name

_SLOW_WAIT_S = 1.0


@dataclass(frozen=True)
class _Share:
    """What this rank writes of the run's tensors; worked out once, because names, shapes and types stay as they are."""

    names: Sequence[str]
    """of all tensors"""
    shards: Sequence[Sequence[str]]
    mine: Sequence[str]
    volatile: Sequence[bool]
    num_bytes: int
    header: bytes


@dataclass(frozen=True)
class _Save:
    """One save under way, as this rank sees it."""

    state: TrainState
    directory: Path
    share: _Share
    stall_ms: float
    began: float
    wrote: list[float] = field(default_factory=list)
    """seconds, when this rank's part is written"""


class Saver:
    """Checkpoints of one run, on every rank: each writes its share, rank 0 makes them visible."""

    def __init__(
        self,
        context: Context,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        saved: TrainState | None,
        average: Average | None = None,
    ) -> None:
        self._context = context
        self._config = context.config.checkpoint
        self._ranks = context.ranks
        self._layout = context.layout
        self._strategy = strategy
        self._parts = (strategy, optimizer, precision, average)
        self._snapshot = Snapshot(context.ranks.device)
        self._is_free = threading.Event()  # nobody reads the snapshot
        self._is_free.set()
        # Not a method: the thread would hold this object, and with it the memory of its snapshot, as long as the process lives.
        self._thread = ThreadPoolExecutor(1, "checkpoint", _begin_thread, (context.ranks.device,))
        self._saves: list[tuple[_Save, Future[str | None]]] = []
        self._failure: str | None = None
        """why the last save that has ended came to nothing"""
        self._directory: Path | None = None
        self._reserved: Future[None] | None = None
        self._share: _Share | None = None
        self._count = 0
        self._approval = threading.Condition()
        self._approved_step = 0
        self._is_rejected = False
        self._saved = _moment(saved)
        """of the newest checkpoint, saved or under way; at first the one that the run began at, if that is its own"""

    def prepare(self) -> None:
        """Gets the memory for snapshots beside the training, once the optimizer has its state; the first save would wait for it."""
        if self._config.enabled and self._config.asynchronous and self._reserved is None:
            share = self._share_of(collect_tensors(*self._parts))
            self._reserved = self._thread.submit(self._snapshot.reserve, share.num_bytes)

    def save(self, state: TrainState) -> None:
        """Begins to save this moment, if it is not saved yet; the same call on every rank."""
        if not self._config.enabled or state.step == 0 or self._saved == _moment(state):
            return
        self._context.pulse.beat(state.step, "snapshot" if self._config.asynchronous else "checkpoint")
        began = time.perf_counter()
        self._collect(wait=False)
        self._wait_for_snapshot(state.step)
        self._is_free.clear()
        tensors = collect_tensors(*self._parts)
        share = self._share_of(tensors)
        if not self._snapshot.has_room(share.num_bytes):
            # In its thread: a refusal of the driver would come up in the next kernel of whoever asked.
            self._thread.submit(self._snapshot.reserve, share.num_bytes).result()
        assembled = self._strategy.assemble(tensors, share.shards)
        if assembled is not None:
            self._snapshot.take_assembled(assembled, share.num_bytes)
        else:
            self._snapshot.take([tensors[name] for name in share.mine], share.volatile)
        self._count += 1
        save = _Save(
            TrainState(**asdict(state)),
            saving_directory(self._layout, state.step, self._context.attempt, self._count),
            share,
            (time.perf_counter() - began) * 1e3,
            time.perf_counter(),
        )
        self._saved, self._directory = _moment(state), save.directory
        self._saves.append((save, self._thread.submit(self._write, save)))
        if not self._config.asynchronous:
            self._collect(wait=True)

    def hold_update(self) -> None:
        """Before every update of the weights."""
        self._snapshot.hold_update()

    def finish(self, state: TrainState, *, is_final: bool) -> None:
        """Waits for the last save; raises if it came to nothing, because nothing later will make up for it."""
        self.approve(state.step)
        failure = self.wait()
        if failure is not None:
            raise StorageError(
                f"the last checkpoint (step {state.step}) was not saved: {failure}",
                str(self._layout.checkpoints),
                "free some space, or mend what it says; the same command goes on from the last good checkpoint",
            )
        if self._ranks.is_first and self._config.enabled:
            # The last evaluation may have come after the save of its step.
            unset = refresh_links(self._layout, state.step, state.best_step, state.step if is_final else None)
            warn_unset(self._context.events, self._layout, unset)

    def approve(self, step: int) -> None:
        """The results up to this step are good: what was saved of them may be seen."""
        with self._approval:
            self._approved_step = step
            self._approval.notify()

    def reject(self) -> None:
        """What has not been approved never will be; what has is brought to its end."""
        with self._approval:
            self._is_rejected = True
            self._approval.notify()
        self.wait()

    def wait(self) -> str | None:
        """Until every save is on the disk, on every rank; why the last one failed, or None."""
        if self._saves:
            self._context.pulse.beat(self._context.pulse.step, "checkpoint")
        self._collect(wait=True)
        # Rank 0 may write for longer than a collective is waited for: first its files, then whatever the ranks do together.
        deadline = time.monotonic() + self._context.config.parallel.timeout_s
        while self._directory is not None and self._directory.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self._failure

    def _collect(self, *, wait: bool) -> None:
        """Takes the results of saves that have ended; raises what was no failure of the disk, but a defect."""
        while self._saves and (wait or self._saves[0][1].done()):
            save, written = self._saves.pop(0)
            self._failure = written.result()
            if self._config.asynchronous:
                # How long a save takes is what the training may wait for: the pace of the phase, whoever was in it.
                self._context.pulse.spend("checkpoint", sum(save.wrote))

    def _share_of(self, tensors: Mapping[str, torch.Tensor]) -> _Share:
        if self._share is None or self._share.names != tuple(tensors):
            shards = plan_shards(tensors, self._ranks.world_size, find_writers(self._strategy, tensors))
            mine = shards[self._ranks.rank] if self._ranks.rank < len(shards) else ()
            volatile = [is_volatile(name, tensors[name]) for name in mine]
            num_bytes = sum(tensors[name].nbytes for name in mine)
            self._share = _Share(tuple(tensors), shards, mine, volatile, num_bytes, encode_header(mine, tensors))
        return self._share

    def _wait_for_snapshot(self, step: int) -> None:
        began = time.perf_counter()
        if self._reserved is not None:
            self._reserved.result()
        if not self._is_free.is_set():
            pulse = self._context.pulse
            before = pulse.phase
            pulse.beat(step, "checkpoint")
            self._is_free.wait()
            pulse.beat(step, before)
        waited_s = time.perf_counter() - began
        if waited_s > _SLOW_WAIT_S:
            self._context.events.write(
                "warning",
                what=f"training waited {waited_s:.1f} s before the checkpoint of step {step}",
                why="the one before it was still being written; checkpoint.every_steps is too often for this disk",
            )

    def _write(self, save: _Save) -> str | None:
        """In the thread: this rank's shard, and on rank 0 everything else. Why it failed, or None."""
        try:
            failure = self._write_shard(save)
            if self._ranks.is_first:
                if failure is not None and not save.directory.is_dir():
                    raise SaveFailed(failure)  # nowhere to wait for the others
                self._publish(save)
            return failure
        except (OSError, SaveFailed, PacelineError) as error:
            reason = _reason(error)
            shutil.rmtree(save.directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._context.events.write(
                    "warning",
                    what=f"the checkpoint of step {save.state.step} was not saved: {reason}",
                    where=str(self._layout.checkpoints),
                    why="training goes on; the checkpoints before it are as they were",
                )
            return reason

    def _write_shard(self, save: _Save) -> str | None:
        """Why this rank's shard will not come, which rank 0 hears as well; None if it is on the disk."""
        shard = save.directory / shard_name(self._ranks.rank)
        try:
            entry = self._write_snapshot(save, shard)
            if entry is not None:
                report_done(shard, entry)
            return None
        except OSError as error:
            report_failed(shard, error)
            return _reason(error)

    def _write_snapshot(self, save: _Save, shard: Path) -> FileEntry | None:
        """None: this rank has no share in a state so small."""
        try:
            if self._ranks.rank >= len(save.share.shards):
                return None
            check_room(self._layout.checkpoints, len(save.share.header) + self._snapshot.num_bytes)
            save.directory.mkdir(exist_ok=True)
            return write_file(shard, [save.share.header, *self._snapshot.read()])
        finally:
            save.wrote.append(time.perf_counter() - save.began)
            # Once, and here: a moment later it may hold the next save, which nobody has read yet.
            self._is_free.set()

    def _publish(self, save: _Save) -> None:
        names = [shard_name(index) for index in range(len(save.share.shards))]
        # Given up before the other ranks, who may wait for this one in a collective, give up.
        files = wait_for_shards(save.directory, names, self._context.config.parallel.timeout_s / 2)
        files[STATE] = write_file(save.directory / STATE, [json.dumps(asdict(save.state), indent=2).encode()])
        self._wait_for_approval(save.state.step)
        context = self._context
        manifest = Manifest(
            step=save.state.step,
            run=context.run.id,
            attempt=context.attempt,
            world_size=self._ranks.world_size,
            paceline=paceline.__version__,
            identity=context.run.identity,
            files=files,
            tensors={name: names[index] for index, shard in enumerate(save.share.shards) for name in shard},
        )
        publish(self._layout, save.directory, manifest, save.state.best_step)
        with contextlib.suppress(OSError):  # it is saved, also where nothing more can be written
            self._record(save, manifest, self._retire(save.state))

    def _retire(self, state: TrainState) -> list[int]:
        try:
            return retire(self._layout, self._config.keep, state.best_step)
        except (OSError, PacelineError) as error:
            what = f"older checkpoints could not be removed: {_reason(error)}"
            self._context.events.write("warning", what=what, where=str(self._layout.checkpoints))
            return []

    def _wait_for_approval(self, step: int) -> None:
        """The result of a step is read while the next one runs; a step that stops the run must not be behind it when it goes on."""
        with self._approval:
            self._approval.wait_for(lambda: self._approved_step >= step or self._is_rejected)
            if self._approved_step < step:
                raise SaveFailed("its step was not good")

    def _record(self, save: _Save, manifest: Manifest, removed: list[int]) -> None:
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


def _begin_thread(device: torch.device) -> None:
    """A thread begins on GPU 0, whichever is this rank's, and would take memory there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _moment(state: TrainState | None) -> tuple[int, int | None] | None:
    """What tells two states of a run apart: a step is saved again if an evaluation came after it."""
    return (state.step, state.evaluated_step) if state is not None else None


def _reason(error: Exception) -> str:
    if isinstance(error, PacelineError):
        return error.problems[0].what
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
