"""What a signal that ended a process means, in words.

describe_signal(9)   -> "signal 9 (SIGKILL; often the out-of-memory killer)"
"""

from __future__ import annotations

import signal

_HINTS = {
    signal.SIGKILL: "often the out-of-memory killer",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up, see its log",
    signal.SIGBUS: "often a full /dev/shm or disk under a memory map",
}
KILLED_DO = "check the kernel's log (dmesg) and free memory"
"""what to do about SIGKILL that nobody here sent"""


def describe_signal(number: int) -> str:
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"signal {number} (unknown)"
    hint = f"; {_HINTS[known]}" if known in _HINTS else ""
    return f"signal {number} ({known.name}{hint})"
