"""Ends processes that are found again and again until none is left, such as those that carry a mark in their environment.

end_marked("TRIAL_OF_PACELINE", {"1a2b3c-7"})   -> []: none of them lives any more

Children inherit an environment, also those that leave their session or lose their parent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection

import psutil


def end_marked(variable: str, marks: Collection[str]) -> list[int]:
    """Ends every process but this one with one of these marks; returns the pids that did not go."""
    return end_found(functools.partial(_find, variable, marks))


def end_found(find: Callable[[], list[psutil.Process]], timeout_s: float = 10.0) -> list[int]:
    """Kills what is found, and waits; returns the pids that did not go."""
    deadline = time.monotonic() + timeout_s
    num_clean = 0
    # Again until nothing is found, twice: a process can start another one between the look and the signal, and one that is just
    # becoming another program has no environment for an instant.
    while True:
        found = find()
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        num_clean = 0 if found else num_clean + 1
        if num_clean == 2 or time.monotonic() > deadline:
            return [process.pid for process in found]
        if found:
            psutil.wait_procs(found, timeout=0.2)
        else:
            time.sleep(0.03)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _find(variable: str, marks: Collection[str]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) in marks and is_alive(process):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]
