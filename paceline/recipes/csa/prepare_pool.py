"""Tasks over several processes: results as they come, few tasks in flight, and a task that kills its process is found and named. No torch.

for task, result in work_through(make, tasks, workers=8):     # result is None where the process died of it
    ...
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from paceline.errors import UsageError
from paceline.parentage import die_with_parent

_CHUNK = 8
"""tasks at a time: the way to a process and back costs a tenth of a millisecond"""
_IN_FLIGHT = 2
"""chunks for each process: one that is worked at, one that waits"""

_KEPT_BYTES = 2**25
"""the most that glibc takes for both before 2.35: what it refuses of one would leave the other to make things worse"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


def work_through(
    do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], workers: int
) -> Generator[tuple[TaskT, ResultT | None], None, None]:
    """Every task with its result, in the order in which they are done. What `do` raises ends it all. One worker is this process."""
    workers = min(workers, -(-len(tasks) // _CHUNK))
    if workers <= 1:
        _keep_memory()
        yield from ((task, do(task)) for task in tasks)
        return
    left = deque(tasks[start : start + _CHUNK] for start in range(0, len(tasks), _CHUNK))
    while left:
        running: dict[Future[list[ResultT]], Sequence[TaskT]] = {}
        pool = _build_pool(workers)
        try:
            while left or running:
                while left and len(running) < _IN_FLIGHT * workers:
                    # Taken off when it has been handed over: where the pool is found broken here, it is still to be done.
                    running[_submit(pool, workers, do, left[0])] = left[0]
                    left.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    results = future.result()
                    yield from zip(running.pop(future), results, strict=True)
            return
        except BrokenProcessPool:
            suspects = [task for chunk in running.values() for task in chunk]
        finally:
            pool.shutdown(cancel_futures=True)
        yield from _work_singly(do, suspects)


def _work_singly(do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]) -> Iterator[tuple[TaskT, ResultT | None]]:
    """One of them has killed its process: each gets one for itself until that dies."""
    pool = _build_pool(1)
    try:
        for task in tasks:
            try:
                yield task, _submit(pool, 1, do, [task]).result()[0]
            except BrokenProcessPool:
                yield task, None
                pool.shutdown()
                pool = _build_pool(1)
    finally:
        pool.shutdown(cancel_futures=True)


def _build_pool(workers: int) -> ProcessPoolExecutor:
    # Spawned: nothing of what this process has imported or locked comes along.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent_pid: int) -> None:
    die_with_parent(parent_pid)
    _keep_memory()


def _keep_memory() -> None:
    """What is freed stays with the process: to get the same few hundred kilobytes from the kernel for each file cost a tenth of its time
    (2026-11-16)."""
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):  # glibc's
            library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _submit(
    pool: ProcessPoolExecutor, workers: int, do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
) -> Future[list[ResultT]]:
    # A process that is started here never hears Ctrl-C: this one does, and ends the others when they have done what they are at.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_do_all, do, tasks)
    except OSError as error:
        what = f"{workers} processes cannot be started ({error.strerror})"
        raise UsageError(what, "command line", "ask for fewer: --workers 2") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_all(do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]) -> list[ResultT]:
    return [do(task) for task in tasks]
