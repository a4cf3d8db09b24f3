"""Tasks that other processes can import, for tests."""

from __future__ import annotations

import os
import signal
import sys
import time


def double(number: int) -> int:
    return 2 * number


def double_or_die(number: int) -> int:
    if number == 21:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def fill_up(number: int) -> int:
    raise OSError(28, "No space left on device", f"file-{number}")


def look_around(number: int) -> tuple[int, bool, bool]:
    """Which process this is, whether torch is in it, and whether it would hear Ctrl-C and the like."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return os.getpid(), "torch" in sys.modules, not blocked >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def double_slowly(number: int) -> int:
    time.sleep(60)
    return 2 * number


def double_and_ask_for_the_end(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return 2 * number
