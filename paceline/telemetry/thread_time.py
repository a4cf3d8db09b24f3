"""How long a thread has wanted a core: the time that it ran, and the time that it was ready to run and got none.

The rest of the time it waits: for a disk, a device, a lock, another rank. On a machine with more work than cores, who gets one is most of
what differs between two ranks, and how fast a core is much of the rest; neither touches how long a thread waits.

    clock = open_thread_time()     # None where the kernel does not tell
    clock.read_s()                 -> (0.173, 0.021): ran, queued; of the thread that opened it, since it began
"""

from __future__ import annotations

import os
import threading
import time


class ThreadTime:
    """Of one thread, and only it may read; which costs about three microseconds."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_s(self) -> tuple[float, float]:
        # Its three numbers: time on a core, which is booked late, time ready for one (both ns), and how often it got one.
        queued_ns = int(os.pread(self._descriptor, 80, 0).split()[1])
        return time.thread_time(), queued_ns * 1e-9

    def close(self) -> None:
        os.close(self._descriptor)


def open_thread_time() -> ThreadTime | None:
    """That of the calling thread."""
    try:
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        clock = ThreadTime(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None
    try:
        clock.read_s()
    except (OSError, ValueError, IndexError):
        clock.close()
        return None
    return clock
