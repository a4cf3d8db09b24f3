"""A process that ends with its parent, however the parent ends; the kernel sees to it, so a process stuck in C ends, too."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, death_signal: int = signal.SIGKILL) -> None:
    """From now on this process receives `death_signal` when its parent dies. A parent that has already died counts. Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def die_with_agent() -> None:
    """For a rank: die with the agent that started it, which may have died before we could ask who it is.

    Every agent is a Python program, and what adopts an orphan (init, a session manager) is none: that tells the two apart.
    """
    parent_pid = os.getppid()
    die_with_parent(parent_pid)
    try:
        with open(f"/proc/{parent_pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return
    if not any(word in command for word in (b"python", b"torch", b"paceline")):
        os._exit(1)
