"""Brings the micro-batches of every step to this rank: the right samples, in the right order, from loader processes if asked.

The requests (ids, epoch) are computed here from the sample order, whatever the number of loader processes, which only fetch. An empty slice is asked for as the first
sample of the batch with weight zero, so that every rank runs the same number of micro-steps. Samples that live on the device are fetched
there, by the training process.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data

from paceline.config.arithmetic import BatchPlan, Length
from paceline.cores import cpu_count
from paceline.engine.context import Context
from paceline.engine.dealing import Measure, deal
from paceline.engine.loader_board import Board
from paceline.engine.loader_choice import LoaderFacts, choose_num_workers, choose_timeout, find_idle
from paceline.engine.loader_watch import FailedFetch, WatchedBatches
from paceline.engine.order import SampleOrder
from paceline.engine.seeding import mix
from paceline.parentage import die_with_parent
from paceline.workload import Draw, SampleSet, Weighed


@dataclass(frozen=True)
class MicroBatch:
    """What one micro-step of one rank trains on."""

    step: int
    micro_step: int
    epoch: int
    ids: list[int]
    """empty for a dummy"""
    batch: Any
    batch_samples: int
    """samples of the whole global batch"""

    def pin_memory(self) -> MicroBatch:
        """The same in page-locked memory; the loader's pinning thread does not look inside a dataclass by itself."""
        pin = torch.utils.data._utils.pin_memory.pin_memory
        return dataclasses.replace(self, batch=pin(self.batch))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Request:
    step: int
    micro_step: int
    epoch: int
    batch: np.ndarray
    """the samples of the whole global batch, packed: requests travel to the loader processes"""
    places: slice | np.ndarray
    """where in it this rank's samples of this micro-step are"""

    @property
    def ids(self) -> list[int]:
        ids: list[int] = self.batch[self.places].tolist()
        return ids


def plan_requests(
    order: SampleOrder, plan: BatchPlan, rank: int, first_step: int, last_step: int, measure: Measure | None = None
) -> Iterator[_Request]:
    """The requests of steps first_step … last_step (counted from 1), for one rank."""
    for step in range(first_step, last_step + 1):
        epoch, index = divmod(step - 1, order.steps_per_epoch)
        batch = order.batch(epoch, index)
        dealt = None if measure is None else deal(measure(batch, epoch), plan)
        for micro_step, bounds in enumerate(plan.slice(len(batch), rank)):
            places = slice(*bounds)
            yield _Request(step, micro_step, epoch, batch, places if dealt is None else dealt[places])


class _Fetcher(torch.utils.data.Dataset[MicroBatch]):
    """Turns a request into a micro-batch; runs in the loader processes."""

    def __init__(self, samples: SampleSet, seed: int) -> None:
        self._samples = samples
        self._seed = seed

    def __getitem__(self, request: _Request) -> MicroBatch:
        ids = request.ids
        everyone: tuple[int, ...] = tuple(request.batch.tolist())
        batch = self._samples.fetch(ids or everyone[:1], Draw(self._seed, request.epoch, everyone))
        return MicroBatch(request.step, request.micro_step, request.epoch, ids, batch, len(everyone))


class _LoaderProcess(torch.utils.data.Dataset[MicroBatch | FailedFetch]):
    """The same in a loader process, which notes what it does."""

    def __init__(self, fetcher: _Fetcher, board: Board) -> None:
        self._fetcher = fetcher
        self._board = board

    def __getitem__(self, request: _Request) -> MicroBatch | FailedFetch:
        self._board.begin_fetch(request.step, request.micro_step)
        try:
            return self._fetcher[request]
        except Exception as error:
            return FailedFetch.of(error)
        finally:
            self._board.end_fetch()

    def begin(self, parent_pid: int, worker: int) -> None:
        """At the start of the process: die with the trainer, and leave the operator's signals to it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to the whole process group
        gc.enable()  # the trainer, which was forked here, has it off while it trains
        self._board.enter(worker)
        die_with_parent(parent_pid)


class _Requests(torch.utils.data.Sampler[_Request]):
    def __init__(self, requests: Iterator[_Request]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[_Request]:
        return self._requests


class Loader:
    """The training set of a run, placed once, and the micro-batches of its steps."""

    def __init__(self, context: Context, samples: SampleSet, length: Length, measure: Measure | None = None) -> None:
        self._config = context.config
        self._ranks = context.ranks
        self._plan = context.batch_plan
        self._steps_per_epoch = length.steps_per_epoch
        self._measure = measure
        if measure is not None:
            reason = "samples of like length share a micro-step on all ranks, the longest first: the loss is that of the whole step"
            context.events.choice("order within a step", "auto", "by length", reason)
        placed = samples.on_device(context.ranks.device)
        self._is_placed = placed is not None
        """the samples live on the device: no loader processes"""
        self._samples = samples if placed is None else placed
        data = context.config.data
        self._pins = self._ranks.device.type == "cuda" and not self._is_placed and data.pin_memory is not False
        facts = LoaderFacts(
            is_placed=self._is_placed,
            is_heavy=isinstance(samples, Weighed) and samples.is_heavy,
            has_gpu=self._ranks.device.type == "cuda",
            cores=cpu_count(),
            local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE", self._ranks.world_size)),
        )
        self.num_workers, self._reason = choose_num_workers(data.num_workers, facts)
        """loader processes"""
        self._timeout_s, timeout_reason = choose_timeout(data, context.config.parallel.timeout_s)
        context.events.choice("data.num_workers", data.num_workers, self.num_workers, self._reason)
        if self.num_workers:
            context.events.choice("data.loader_timeout_s", data.loader_timeout_s, self._timeout_s, timeout_reason)

    def find_ineffective(self, given: Collection[str]) -> Iterator[tuple[str, str]]:
        """(key, reason) of each key that was given and that the choice above leaves without effect."""
        idle = find_idle(self._config.data.num_workers, self.num_workers, self._reason, self._is_placed)
        return ((key, reason) for key, reason in idle if key in given)

    def load(self, first_step: int, last_step: int, *, in_process: bool = False) -> Iterator[MicroBatch]:
        """The micro-batches of these steps (counted from 1) for this rank, in their order."""
        data, seed = self._config.data, self._config.run.seed
        requests = self._plan_requests(first_step, last_step)
        fetcher = _Fetcher(self._samples, seed)
        if in_process or self.num_workers == 0:
            batches = (fetcher[request] for request in requests)
            # From memory that is not page-locked a copy waits until the device has done all before it.
            return map(MicroBatch.pin_memory, batches) if self._pins else batches
        board = Board(self.num_workers)
        process = _LoaderProcess(fetcher, board)
        loader = torch.utils.data.DataLoader(
            process,
            sampler=_Requests(requests),
            batch_size=None,
            num_workers=self.num_workers,
            prefetch_factor=data.prefetch,
            pin_memory=self._pins,
            worker_init_fn=functools.partial(process.begin, os.getpid()),
            multiprocessing_context="fork",  # the board is inherited
            # Its own generator: iter(DataLoader) would otherwise draw from the global one.
            generator=torch.Generator().manual_seed(mix(seed)),
        )
        return WatchedBatches(
            iter(loader),
            board,
            rank=self._ranks.rank,
            timeout_s=self._timeout_s,
            first_step=first_step,
            accumulate=self._plan.accumulate,
            find_ids=self._find_ids,
        )

    def _plan_requests(self, first_step: int, last_step: int) -> Iterator[_Request]:
        train, seed = self._config.train, self._config.run.seed
        order = SampleOrder(len(self._samples), train.global_batch, self._steps_per_epoch, seed)
        return plan_requests(order, self._plan, self._ranks.rank, first_step, last_step, self._measure)

    def _find_ids(self, step: int, micro_step: int) -> list[int]:
        return [*self._plan_requests(step, step)][micro_step].ids


def to_device(value: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device; plain values stay as they are."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: to_device(item, device) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(item, device) for item in value)
    return value
