"""Tasks over several processes: results as they come, few tasks in flight, and a task that kills its process is found and named. No torch.

for task, result in work_through(make, tasks, workers=8):     # result is None where the process died of it
    ...

Ctrl-C ends it between two tasks: the processes finish what they are at. A second one ends them at once.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from paceline.errors import UsageError
from paceline.parentage import die_with_parent
from paceline.recipes.csa.held_signals import HeldSignals

_CHUNK = 8
"""tasks at a time: the way to a process and back costs a tenth of a millisecond"""
_IN_FLIGHT = 2
"""chunks for each process: one that is worked at, one that waits"""
_LOOK_S = 0.1
"""how often it looks whether somebody wants it to end"""

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
    with HeldSignals(second_raises=workers == 1) as held:
        if workers > 1:
            yield from _work_together(do, tasks, workers, held)
            return
        _keep_memory()
        for task in tasks:
            yield task, do(task)
            held.check()


def _work_together(
    do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], workers: int, held: HeldSignals
) -> Iterator[tuple[TaskT, ResultT | None]]:
    left = deque(tasks[start : start + _CHUNK] for start in range(0, len(tasks), _CHUNK))
    while left:
        running: dict[Future[list[ResultT]], Sequence[TaskT]] = {}
        pool = _Pool(workers, held)
        try:
            while left or running:
                while left and len(running) < _IN_FLIGHT * workers:
                    # Taken off when it has been handed over: where the pool is found broken here, it is still to be done.
                    running[pool.submit(do, left[0])] = left[0]
                    left.popleft()
                for future in pool.wait(running):
                    results = future.result()
                    yield from zip(running.pop(future), results, strict=True)
            return
        except BrokenProcessPool:
            suspects = [task for chunk in running.values() for task in chunk]
        finally:
            pool.end()
        yield from _work_singly(do, suspects, held)


def _work_singly(
    do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], held: HeldSignals
) -> Iterator[tuple[TaskT, ResultT | None]]:
    """One of them has killed its process: each gets one for itself until that dies."""
    pool = _Pool(1, held)
    try:
        for task in tasks:
            try:
                (future,) = pool.wait([pool.submit(do, [task])])
                yield task, future.result()[0]
            except BrokenProcessPool:
                yield task, None
                pool.end()
                pool = _Pool(1, held)
    finally:
        pool.end()


class _Pool:
    """Some processes, which are started whole and end whole, whenever somebody asks for the end."""

    def __init__(self, workers: int, held: HeldSignals) -> None:
        self._workers, self._held = workers, held
        self._others = set(multiprocessing.active_children())
        # Spawned: nothing of what this process has imported or locked comes along.
        context = multiprocessing.get_context("spawn")
        with held.deaf_children():  # here the one that keeps account of semaphores begins
            self._executor = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(os.getpid(),))

    def submit(self, do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]) -> Future[list[ResultT]]:
        try:
            with self._held.deaf_children():
                return self._executor.submit(_do_all, do, tasks)
        except OSError as error:
            what = f"{self._workers} processes cannot be started ({error.strerror})"
            raise UsageError(what, "command line", "ask for fewer: --workers 2") from error

    def wait(self, running: Iterable[Future[ResultT]]) -> set[Future[ResultT]]:
        """Those of them that are done, as soon as one is."""
        while True:
            self._held.check()
            done = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED).done
            if done:
                return done

    def end(self) -> None:
        """When every process has done what it is at, or as soon as somebody asks once more: what is half written, the next call sweeps away."""
        asked = min(1, self._held.count)
        ending = threading.Thread(target=self._executor.shutdown, kwargs={"cancel_futures": True}, name="pool-end")
        ending.start()
        while ending.is_alive():
            ending.join(_LOOK_S)
            if self._held.count > asked:
                for process in set(multiprocessing.active_children()) - self._others:
                    process.kill()


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


def _do_all(do: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]) -> list[ResultT]:
    return [do(task) for task in tasks]
