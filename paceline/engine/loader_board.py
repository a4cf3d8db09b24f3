"""What each loader process is doing, as it says itself: in memory that it shares with its rank, for a few hundred nanoseconds per batch.

board.begin_fetch(step=12, micro_step=0)      in the loader process
board.read()   ->   [Activity(pid=4711, step=12, micro_step=0, since=…)]      in its rank
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import signal
import time
import weakref
from dataclasses import dataclass

_WORDS = 4  # pid, step, micro_step, since; step 0: it waits for a request
_ANSWER_S = 2.0


@dataclass(frozen=True)
class Activity:
    """What one loader process said last."""

    pid: int
    step: int
    """0: it waits for a request"""
    micro_step: int
    since: float
    """time.monotonic()"""


class Board:
    """Where the loader processes of one rank note what they do; made before they are forked."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._words = multiprocessing.RawArray("d", num_workers * _WORDS)
        self._stacks = os.memfd_create("loader-stacks")
        self._first = 0
        weakref.finalize(self, os.close, self._stacks)

    def enter(self, worker: int) -> None:
        """In a loader process, at its start."""
        gc.freeze()  # what the rank made is the rank's to end: a temporary file collected here would be gone for it
        self._first = worker * _WORDS
        self._words[self._first] = os.getpid()
        self.end_fetch()
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)

    def begin_fetch(self, step: int, micro_step: int) -> None:
        self._words[self._first + 1 : self._first + 4] = [step, micro_step, time.monotonic()]

    def end_fetch(self) -> None:
        self._words[self._first + 1 : self._first + 4] = [0, 0, time.monotonic()]

    def read(self) -> list[Activity]:
        """What each loader process does; one that has not begun yet has pid 0."""
        rows = [self._words[i : i + _WORDS] for i in range(0, len(self._words), _WORDS)]
        return [Activity(int(row[0]), int(row[1]), int(row[2]), row[3]) for row in rows]

    def ask_stack(self, pid: int) -> str:
        """The Python stacks of a loader process; empty if it does not answer (stopped, or asleep in the kernel)."""
        if not pid:
            return ""
        before = os.fstat(self._stacks).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        size, deadline = before, time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
            previous, size = size, os.fstat(self._stacks).st_size
            if before < size == previous:
                break
        return os.pread(self._stacks, size - before, before).decode(errors="replace")
