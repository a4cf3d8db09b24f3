"""Threads of one stage: what hangs there holds up nobody else, and the request goes on without it.

    lane = Lane("towers", width=4)
    call = lane.start(lambda: source.fetch(query))
    call.result(timeout=0.2)

A thread cannot be ended from outside. One whose caller went away goes on to its end, and its result is dropped; when all threads of a
lane are such, further calls are refused at once, so that no request waits for a stage that is known to hang. Threads are daemons: a
process does not wait for them at its end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


_MOST_WAITING = 256
"""calls of a lane that no thread has taken up yet"""


class StuckError(Exception):
    """A stage that takes no call now: its threads hang, or too much waits for them already."""


class Call(Generic[T]):
    """One piece of work under way."""

    def __init__(self, lane: Lane, work: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._lane, self._work = lane, work

    def result(self, timeout: float | None) -> T:
        """TimeoutError where it is not there in time; then it is given up."""
        try:
            return self.future.result(timeout)
        except TimeoutError:
            if not self.future.cancel():
                self._lane.abandon(self.future)
            raise

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            found = self._work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(found)


class Lane:
    """At most `width` threads, started when they are needed."""

    def __init__(self, name: str, width: int = 8) -> None:
        self.name, self.width = name, width
        self._waiting: queue.SimpleQueue[Call[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_pending = self._num_abandoned = 0

    def start(self, work: Callable[[], T]) -> Call[T]:
        with self._lock:
            if self._num_abandoned >= self.width:
                raise StuckError(f"all {self.width} threads of {self.name} hang in earlier calls")
            if self._num_pending >= self.width + _MOST_WAITING:
                raise StuckError(f"{self._num_pending} calls wait for {self.name} already")
            call = Call(self, work)
            self._num_pending += 1
            is_short = self._num_pending > self._num_threads < self.width
            self._num_threads += is_short
        self._waiting.put(call)
        if is_short:
            threading.Thread(target=self._work, name=f"serving-{self.name}", daemon=True).start()
        return call

    def abandon(self, future: Future[Any]) -> None:
        """Nobody waits for it any more; its thread counts as hanging until it ends after all."""
        with self._lock:
            self._num_abandoned += 1
        future.add_done_callback(self._came_back)

    def close(self) -> None:
        """Idle threads end; one that is at work ends after it."""
        for _ in range(self._num_threads):
            self._waiting.put(None)

    def _came_back(self, _: Future[Any]) -> None:
        with self._lock:
            self._num_abandoned -= 1

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.run()
            with self._lock:
                self._num_pending -= 1
            del call  # nothing of a request is kept while the thread waits for the next one
