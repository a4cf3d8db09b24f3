"""The error that names the loader process that died, or from which nothing comes, with what it was doing.

A rank that waits in vain reads what its loader processes have noted, asks the operating system for the state of the one whose turn it
is, and that process itself for its Python stack.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.connection
import os
import re
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch

from paceline.engine.loader_board import Activity, Board
from paceline.errors import LoaderError, PacelineError, error_from_record

_DEATH_S = 1.0
_SHOWN_SAMPLES = 6
_SHOWN_FRAMES = 4
_STATES = {
    psutil.STATUS_RUNNING: "running (R)",
    psutil.STATUS_SLEEPING: "sleeping (S)",
    psutil.STATUS_DISK_SLEEP: "in uninterruptible sleep (D)",
    psutil.STATUS_STOPPED: "stopped (T)",
    psutil.STATUS_TRACING_STOP: "held by a debugger (t)",
    psutil.STATUS_ZOMBIE: "dead (Z)",
}
_REMEDIES = {
    psutil.STATUS_DISK_SLEEP: "check the disk or network file system that it reads from: it waits in the kernel",
    psutil.STATUS_STOPPED: "somebody stopped it: kill -CONT {pid}, or start the run again",
}
_SIGNAL_REMEDIES = {
    signal.SIGKILL: "the out-of-memory killer does this (see dmesg), or a person: a smaller data.num_workers or data.prefetch needs less memory",
    signal.SIGBUS: "shared memory is full: enlarge /dev/shm, or set data.num_workers=0",
}
_MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")


class WatchedBatches(Iterator[Any]):
    """The batches of a DataLoader with loader processes; what goes wrong with those becomes a `LoaderError`."""

    def __init__(
        self,
        iterator: Any,
        board: Board,
        *,
        rank: int,
        timeout_s: float | None,
        first_step: int,
        accumulate: int,
        find_ids: Callable[[int, int], Sequence[int]],
    ) -> None:
        self._iterator = iterator
        self._board = board
        self._rank = rank
        self._timeout_s = timeout_s
        self._accumulate = accumulate
        self._find_ids = find_ids
        self._first_step = first_step
        self._awaited = (first_step, 0)
        self._waiting_since: float | None = None
        self._found: PacelineError | None = None
        """who is to blame; from then on the end of a loader process is no longer news"""
        self._oom_kills = count_oom_kills()
        _ON_CHILD.watch(self)
        if timeout_s is not None:
            # Torch's own time limit does not cover all of the way: a batch whose process stands still in the middle of handing it over
            # is waited for without end (torch 2.13).
            _start_deadline(weakref.ref(self), timeout_s)

    def __next__(self) -> Any:
        if self._found is not None:
            raise self._found
        self._waiting_since = time.monotonic()
        try:
            item = next(self._iterator)
        except (RuntimeError, OSError, EOFError) as error:
            # A process that dies with a batch still in its hands resets the connection that the batch was to come through.
            explained = self.explain(error)
            if explained is None:
                raise
            raise explained from error
        finally:
            self._waiting_since = None
        if isinstance(item, FailedFetch):
            raise self._blame(item.to_error(self._rank, self._samples(*self._awaited)))
        step, micro_step = item.step, item.micro_step + 1
        self._awaited = (step, micro_step) if micro_step < self._accumulate else (step + 1, 0)
        return item

    def explain(self, error: Exception) -> PacelineError | None:
        """The error that says which process is to blame; None if none is."""
        if self._found is not None:
            return self._found
        if not isinstance(error, RuntimeError):
            # Its connections close before it is dead.
            by_sentinel = {process.sentinel: process for process in self._iterator._workers}
            for sentinel in multiprocessing.connection.wait(list(by_sentinel), _DEATH_S):
                by_sentinel[sentinel].join(_DEATH_S)
        for process, activity in zip(self._iterator._workers, self._board.read(), strict=True):
            if process.exitcode:
                return self._blame(self._dead(process.pid, process.exitcode, activity))
        return None

    def check_deadline(self, timeout_s: float) -> bool:
        """Whether to go on asking; from another thread than the one that waits, which the death of the loader processes wakes up."""
        since = self._waiting_since
        if self._found is None and since is not None and time.monotonic() - since > timeout_s:
            found = self._stuck()  # which takes a moment, in which the batch may have come
            if self._waiting_since == since:
                self._blame(found)
        return self._found is None

    def on_child(self, handle: Callable[[], None]) -> None:
        """A process has ended: news for the waiting rank, or for torch to look into."""
        if self._found is None:
            try:
                handle()
            except RuntimeError as error:
                raise self.explain(error) or error from error
        elif self._waiting_since is not None:
            raise self._found

    def _blame(self, found: PacelineError) -> PacelineError:
        """The other loader processes are of no more use, and ignore every milder signal. What torch would do to end them in good order
        can hang: one of them may have died with a lock in its hands."""
        self._found = found
        self._iterator._shutdown = True
        torch._C._remove_worker_pids(id(self._iterator))
        for process in self._iterator._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return found

    def _dead(self, pid: int, exit_code: int, activity: Activity) -> LoaderError:
        ended, do = f"ended with exit code {exit_code}", "the rank's log may say why"
        if exit_code < 0:
            name = signal.Signals(-exit_code).name
            ended = f"was killed by {name}"
            do = _SIGNAL_REMEDIES.get(signal.Signals(-exit_code), f"the rank's log has its stack, if {name} left one")
        kills = count_oom_kills() - self._oom_kills
        if exit_code == -signal.SIGKILL and kills > 0:
            ended += " (the out-of-memory killer has just struck in this control group)"
        doing = f"while fetching {self._samples(activity.step, activity.micro_step)}" if activity.step else "while idle"
        where = f"rank {self._rank}, one of {self._board.num_workers} loader processes"
        return LoaderError(f"loader process {pid} {ended} {doing}", where, do)

    def _stuck(self) -> LoaderError:
        activities = self._board.read()
        step, micro_step = self._awaited
        # The requests go round among the processes, in their order.
        turn = (step - self._first_step) * self._accumulate + micro_step
        guilty = activities.pop(turn % len(activities))
        state = _state(guilty.pid)
        stack = self._board.ask_stack(guilty.pid)
        print(f"loader process {guilty.pid}, {_say(state)}:\n{stack or '(no answer)'}", file=sys.stderr, flush=True)
        wanted, age = self._samples(step, micro_step), time.monotonic() - guilty.since
        doing = f"has been fetching {wanted} for {age:.1f} s"
        if (guilty.step, guilty.micro_step) != self._awaited:
            doing = f"does not hand over {wanted}; {self._describe(guilty)}"
        beside = "".join(f"; process {other.pid}: {self._describe(other)}" for other in activities)
        return LoaderError(
            f"no batch came from the loader for {self._timeout_s:g} s (data.loader_timeout_s): process {guilty.pid} {doing}",
            f"rank {self._rank}; process {guilty.pid} is {_say(state)}, {_shorten(stack)}{beside}",
            _REMEDIES.get(
                state, "if fetching may take that long, set data.loader_timeout_s higher; see data.num_workers"
            ).format(pid=guilty.pid),
        )

    def _samples(self, step: int, micro_step: int) -> str:
        ids = list(self._find_ids(step, micro_step))
        shown = ", ".join(map(str, ids[:_SHOWN_SAMPLES]))
        more = f", … ({len(ids)} in all)" if len(ids) > _SHOWN_SAMPLES else ""
        return f"step {step}, micro-step {micro_step}" + (f" (samples {shown}{more})" if ids else " (no samples)")

    def _describe(self, activity: Activity) -> str:
        age = time.monotonic() - activity.since
        doing = f"fetching step {activity.step}, micro-step {activity.micro_step}" if activity.step else "idle"
        return f"it has been {doing} for {age:.1f} s" if activity.pid else "it has not begun"


@dataclass(frozen=True)
class FailedFetch:
    """An exception in a loader process, on its way to the rank in place of a batch: torch would bring its text alone."""

    record: dict[str, Any] | None
    """of an error of ours"""
    what: str
    place: str
    pid: int
    traceback: str

    @staticmethod
    def of(error: Exception) -> FailedFetch:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        record = error.to_record() if isinstance(error, PacelineError) else None
        what, place = f"{type(error).__name__}: {error}", f"{frame.filename}:{frame.lineno}"
        return FailedFetch(record, what, place, os.getpid(), traceback.format_exc())

    def to_error(self, rank: int, samples: str) -> PacelineError:
        where = f"rank {rank}, loader process {self.pid}, {samples}"
        error = PacelineError(self.what, f"{where}, {self.place}", "run again with --debug for the traceback")
        if self.record is not None:
            error = error_from_record(self.record)
        error.add_note(f"{where}:\n{self.traceback}")
        return error


class _OnChild:
    """Torch's handler of SIGCHLD raises where a loader process died, wherever the rank is just then; this one says which and how."""

    def __init__(self) -> None:
        self._watched: weakref.ref[WatchedBatches] | None = None
        self._before: Callable[[int, FrameType | None], Any] | None = None

    def watch(self, batches: WatchedBatches) -> None:
        self._watched = weakref.ref(batches)
        found = signal.getsignal(signal.SIGCHLD)
        if found is not self and callable(found):
            self._before = found
            signal.signal(signal.SIGCHLD, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        assert self._before is not None
        handle = functools.partial(self._before, number, frame)
        watched = self._watched() if self._watched is not None else None
        if watched is None:
            handle()
        else:
            watched.on_child(handle)


_ON_CHILD = _OnChild()


def _start_deadline(batches: weakref.ref[WatchedBatches], timeout_s: float) -> None:
    """A thread that lives as long as the batches do."""

    def run() -> None:
        is_on = True
        while is_on:
            time.sleep(min(1.0, timeout_s / 4))
            watched = batches()
            is_on = watched is not None and watched.check_deadline(timeout_s)
            del watched

    threading.Thread(target=run, name="loader deadline", daemon=True).start()


def count_oom_kills() -> int:
    """How often the out-of-memory killer has struck in this control group; 0 where nobody counts."""
    with contextlib.suppress(OSError):
        found = re.search(r"^oom_kill (\d+)", _MEMORY_EVENTS.read_text(), re.MULTILINE)
        return int(found.group(1)) if found else 0
    return 0


def _state(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status()) if pid else "not there yet"
    except psutil.Error:
        return psutil.STATUS_ZOMBIE


def _say(state: str) -> str:
    return _STATES.get(state, state)


def _shorten(stack: str) -> str:
    """The innermost frames of the thread that was interrupted."""
    _, _, current = stack.partition("Current thread")
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', current)[:_SHOWN_FRAMES]
    if not frames:
        return "and did not answer when asked for its stack"
    return "in " + " < ".join(f"{name} ({Path(file).name}:{line})" for file, line, name in frames)
