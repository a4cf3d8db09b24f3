"""Ends processes that are found again and again until none is left, such as those that carry a mark in their environment.

end_marked("TRIAL_OF_PACELINE", {"1a2b3c-7"})   -> []: none of them lives any more
describe_left([4711])      -> "could not end process 4711 (disk-sleep: it is in the kernel, where no signal reaches it; …)"

Children inherit an environment, also those that leave their session or lose their parent. Nobody waits for ever: some processes cannot be
killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection, Sequence

import psutil

_GONE_S = 10.0
_IN_KERNEL = "it is in the kernel, where no signal reaches it; it goes when its disk, network or driver answers, or with the machine"
_OUT_OF_REACH = "SIGKILL did not end it; another user's, or of another container?"


def end_marked(variable: str, marks: Collection[str]) -> list[int]:
    """Ends every process but this one with one of these marks; returns the pids that did not go."""
    return end_found(functools.partial(_find, variable, marks))


def end_found(find: Callable[[], list[psutil.Process]]) -> list[int]:
    """Kills what is found, and waits for some seconds; returns the pids that did not go."""
    deadline = time.monotonic() + _GONE_S
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


def describe_left(pids: Sequence[int]) -> str:
    """Why those that did not go did not, as one sentence."""
    return f"could not end process {', '.join(f'{pid} ({_why_left(pid)})' for pid in pids)}"


def _why_left(pid: int) -> str:
    try:
        state = str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone since"
    return f"{state}: {_IN_KERNEL if state == psutil.STATUS_DISK_SLEEP else _OUT_OF_REACH}"


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
