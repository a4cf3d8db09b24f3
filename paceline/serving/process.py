"""A process that serves: memory that a request frees stays for the next one, and a thread that waits is let in soon.

    prepare_process()        # once, before the first request

Every request allocates and frees the same few megabytes. By default the C library gives them back to the system each time, and the
kernel clears every page again at its first touch: half the time of all filters on 10,000 candidates in a virtual machine (0.9 of 1.9 ms,
300 page faults, 2026-11). And a thread that computes in Python is asked only every 5 ms to let another one in, which is longer than most
stages take.
"""

from __future__ import annotations

import ctypes
import sys

_SWITCH_S = 5e-4
"""of 0.5, 5 and 20 ms the one with the lowest p99 under 4 callers on one core (2026-11)"""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""names of mallopt(3), as malloc.h numbers them"""
_KEPT = 256 << 20
_LARGEST_IN_HEAP = 32 << 20
"""the most that glibc takes on a machine of 64 bits"""


def prepare_process() -> None:
    keep_memory()
    sys.setswitchinterval(_SWITCH_S)


def keep_memory() -> bool:
    """Whether the C library took it: glibc does."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wishes = ((_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, 16 << 20), (_MMAP_THRESHOLD, _LARGEST_IN_HEAP))
    taken = [mallopt(name, value) for name, value in wishes]
    return all(taken)
