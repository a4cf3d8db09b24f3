"""A rank's Python stacks on request: SIGUSR1 makes it append those of all its threads to a file of its own, also while it is stuck in C.

    answer_requests(layout.stacks(rank), rank=0, attempt=1)          # in the rank, once
    find_answerer(layout.stacks(0))   -> 4711                        # who would answer: never signal a process that would not

A process without a handler dies of the signal, and one whose handler is somebody else's (a batch system's, say) would do who knows
what: so a process says that it answers by a line in the file, and takes it back when somebody puts a handler in place of ours.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
from pathlib import Path

REQUEST = signal.SIGUSR1
_ANSWERS = "== rank {rank}, attempt {attempt}, pid {pid} answers =="
_ENDS = "== pid {pid} answers no more =="
_LINE = re.compile(r"^== (?:rank \d+, attempt \d+, )?pid (\d+) answers(?P<ended> no more)? ==$", re.MULTILINE)


class StackFile:
    """What answers in this process; the file stays open until it ends."""

    def __init__(self, path: Path, rank: int, attempt: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(REQUEST, self._descriptor, all_threads=True, chain=False)
        self._handler = _read_handler()
        self._write(_ANSWERS.format(rank=rank, attempt=attempt, pid=os.getpid()))
        self._is_over = False

    def check_handler(self) -> None:
        """Takes the offer back if somebody has put another handler in place of ours; to be called now and then."""
        if self._is_over or _read_handler() == self._handler:
            return
        self._is_over = True
        try:
            self._write(_ENDS.format(pid=os.getpid()))
        except OSError:
            os.ftruncate(self._descriptor, 0)  # which a full disk allows: without a line nobody answers either

    def _write(self, line: str) -> None:
        # On a line of its own, whatever stacks another process was killed in.
        os.write(self._descriptor, f"\n{line}\n".encode())


def answer_requests(path: Path, rank: int, attempt: int) -> StackFile | None:
    """From now on this process answers; None where the signal already means something here, or the disk is full."""
    if _is_taken():
        return None
    try:
        return StackFile(path, rank, attempt)
    except OSError:
        return None


def find_answerer(path: Path) -> int | None:
    """The pid of the process that answers through this file, as the last one that wrote there said; None: nobody does."""
    try:
        found = list(_LINE.finditer(path.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return None
    return int(found[-1][1]) if found and not found[-1]["ended"] else None


def catches(status: str, number: int = REQUEST) -> bool:
    """Whether a process has a handler for the signal, by the text of its /proc/PID/status."""
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


def _read_handler() -> bytes:
    """Where the signal goes, as the C library has it: Python's own table knows nothing of a handler that a library in C has set."""
    action = ctypes.create_string_buffer(256)  # struct sigaction, which begins with the handler
    ctypes.CDLL(None).sigaction(int(REQUEST), None, action)
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]


def _is_taken() -> bool:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return True
    ignored = re.search(r"^SigIgn:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return catches(status) or (ignored is not None and bool(int(ignored[1], 16) >> (REQUEST - 1) & 1))
