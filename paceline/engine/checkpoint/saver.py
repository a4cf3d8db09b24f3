"""Saves the state of a run while training goes on: a snapshot now, the files behind it in a thread of each rank.

saver.save(state)          # milliseconds; every rank calls it at the same step
saver.approve(state.step)  # when the result of that step is known to be good: only then does it become visible
saver.finish(state)        # at the end: waits for what is under way, and says so if the last save failed
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from paceline.engine.average import Average
from paceline.engine.checkpoint.approval import Approval
from paceline.engine.checkpoint.keeping import refresh_links, saving_directory, warn_unset
from paceline.engine.checkpoint.shard import encode_header, plan_shards
from paceline.engine.checkpoint.snapshot import Snapshot
from paceline.engine.checkpoint.tensors import collect_tensors, find_writers, is_volatile
from paceline.engine.checkpoint.writer import Save, Share, Writer
from paceline.engine.context import Context
from paceline.engine.precision import Precision
from paceline.engine.state import TrainState
from paceline.engine.strategies.base import Strategy
from paceline.engine.tables import Tables
from paceline.errors import StorageError
from paceline.telemetry.checkpoints import shard_name

_SLOW_WAIT_S = 1.0


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
        tables: Tables | None = None,
    ) -> None:
        self._context = context
        self._config = context.config.checkpoint
        self._ranks = context.ranks
        self._layout = context.layout
        self._strategy = strategy
        self._parts = (strategy, optimizer, precision, average, tables)
        self._snapshot = Snapshot(context.ranks.device)
        self._is_free = threading.Event()  # nobody reads the snapshot
        self._is_free.set()
        self._approval = Approval()
        self._writer = Writer(context, self._snapshot, self._approval, self._is_free.set)
        # Not a method: the thread would hold this object, and with it the memory of its snapshot, as long as the process lives.
        self._thread = ThreadPoolExecutor(1, "checkpoint", _begin_thread, (context.ranks.device,))
        self._saves: list[tuple[Save, Future[str | None]]] = []
        self._failure: str | None = None
        """why the last save that has ended came to nothing"""
        self._directory: Path | None = None
        self._reserved: Future[None] | None = None
        self._share: Share | None = None
        self._count = 0
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
        directory = saving_directory(self._layout, state.step, self._context.attempt, self._count)
        save = Save(
            TrainState(**vars(state)),
            str(directory),
            share,
            (time.perf_counter() - began) * 1e3,
            time.perf_counter(),
        )
        self._saved, self._directory = _moment(state), directory
        self._saves.append((save, self._thread.submit(self._writer.write, save)))
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
        self._approval.grant(step)

    def reject(self) -> None:
        """What has not been approved never will be; what has is brought to its end."""
        self._approval.end()
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

    def _share_of(self, tensors: Mapping[str, torch.Tensor]) -> Share:
        if self._share is None or self._share.names != tuple(tensors):
            shards = plan_shards(tensors, self._ranks.world_size, find_writers(self._strategy, tensors))
            mine = shards[self._ranks.rank] if self._ranks.rank < len(shards) else ()
            volatile = [is_volatile(name, tensors[name]) for name in mine]
            num_bytes = sum(tensors[name].nbytes for name in mine)
            header = encode_header(mine, tensors)
            files = [shard_name(index) for index in range(len(shards))]
            places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
            self._share = Share(tuple(tensors), shards, mine, volatile, num_bytes, header, files, places)
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


def _begin_thread(device: torch.device) -> None:
    """A thread begins on GPU 0, whichever is this rank's, and would take memory there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _moment(state: TrainState | None) -> tuple[int, int | None] | None:
    """What tells two states of a run apart: a step is saved again if an evaluation came after it."""
    return (state.step, state.evaluated_step) if state is not None else None
