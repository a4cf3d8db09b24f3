"""Requests that come at the same time answered in one go: callers wait in their own threads, one thread asks the model.

    batcher = Batcher(ranker.rank, max_batch=8, max_wait_ms=1.0)
    batcher.ask(request, timeout_s=0.2)             # the answer of this request, in the order of none but its own

The first request of a batch waits at most `max_wait_ms` for others, and not at all once there are `max_batch`. A batch that fails is asked
again, request by request, so that only the guilty one fails. A request whose caller has gone is left out.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from paceline.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")


class OverloadedError(Exception):
    """More requests wait than the batcher takes: this one is refused at once, rather than answered when nobody waits for it."""


class Batcher(Generic[T, R]):
    """One thread that answers batches of requests; `ask` is called from any number of others."""

    def __init__(
        self,
        answer: Callable[[Sequence[T]], Sequence[R]],
        *,
        max_batch: int = 8,
        max_wait_ms: float = 1.0,
        most_waiting: int = 64,
    ) -> None:
        if max_batch < 1 or max_wait_ms < 0 or most_waiting < 1:
            what = f"a batch of {max_batch} after {max_wait_ms} ms with {most_waiting} waiting is none"
            raise UsageError(what, "batcher", "give 1 or more, 0 or more, and 1 or more")
        self.sizes: Counter[int] = Counter()
        """how many batches of each size there were"""
        self._answer, self._max_batch, self._max_wait_s = answer, max_batch, max_wait_ms / 1e3
        self._most_waiting = most_waiting
        self._waiting: queue.SimpleQueue[tuple[T, Future[R]] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._closing = threading.Lock()
        """so that nothing is put behind the end, where nobody would answer it"""
        self._thread = threading.Thread(target=self._work, name="serving-batcher", daemon=True)
        self._thread.start()

    def ask(self, request: T, timeout_s: float | None = None) -> R:
        """Its answer, or what it failed with; TimeoutError where there is none in time."""
        future = self.submit(request)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            if timeout_s is None or (future.done() and not future.cancelled()):
                raise  # the answer itself is that error
            raise TimeoutError(f"no answer within {timeout_s * 1e3:,.0f} ms") from None

    def submit(self, request: T) -> Future[R]:
        future: Future[R] = Future()
        with self._closing:
            if self._is_closed:
                raise RuntimeError("the batcher is closed")
            if self._waiting.qsize() >= self._most_waiting:
                raise OverloadedError(f"{self._most_waiting} requests wait already")
            self._waiting.put((request, future))
        return future

    def close(self) -> None:
        """Answers what waits, and ends."""
        with self._closing:
            self._is_closed = True
            self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._collect()
            alive = [(request, future) for request, future in batch if future.set_running_or_notify_cancel()]
            if alive:
                self.sizes[len(alive)] += 1
                self._settle(alive)
            del batch, alive  # nothing of a request is kept while the next one is waited for

    def _collect(self) -> tuple[list[tuple[T, Future[R]]], bool]:
        """The next batch, and whether more may come."""
        batch: list[tuple[T, Future[R]]] = []
        deadline: float | None = None
        while len(batch) < self._max_batch:
            try:
                wait_s = None if deadline is None else max(0.0, deadline - time.perf_counter())
                found = self._waiting.get(timeout=wait_s) if wait_s != 0 else self._waiting.get_nowait()
            except queue.Empty:
                return batch, True
            if found is None:
                return batch, False
            batch.append(found)
            deadline = deadline or time.perf_counter() + self._max_wait_s
        return batch, True

    def _settle(self, batch: list[tuple[T, Future[R]]]) -> None:
        try:
            answers = self._answer([request for request, _ in batch])
            if len(answers) != len(batch):
                raise ValueError(f"{len(answers)} answers to {len(batch)} requests")
        except BaseException as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for each in batch:
                self._settle([each])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)
