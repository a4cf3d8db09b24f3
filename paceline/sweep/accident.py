"""What ends a trial and says nothing about its case: a full disk, and memory that somebody else may have taken.

is_disk_full(sweep_root, trial_root), may_be_memory(measured, saw_memory_killer=True)
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline.files import read_last_records
from paceline.sweep.measured import Measured
from paceline.telemetry.layout import RunLayout

MEMORY_KILLER = "the kernel's out-of-memory killer was at work meanwhile"
_NO_ROOM_BYTES = 1 << 18


def is_disk_full(sweep: Path, trial: Path) -> bool:
    """Now, or when the trial failed: what did not fit may have been taken away again."""
    space = os.statvfs(sweep)
    if space.f_bavail * space.f_frsize < _NO_ROOM_BYTES:
        return True
    failures = [event for event in read_last_records(RunLayout(trial).events) if event.get("kind") == "failure"]
    return any(event.get("error") == "StorageError" and "disk is full" in _what(event) for event in failures)


def may_be_memory(measured: Measured, *, saw_memory_killer: bool) -> bool:
    """Killed while the kernel killed for want of memory, on a machine that others use, too: once it may be their doing."""
    return measured.status == "failed" and saw_memory_killer and "signal 9" in measured.reason


def _what(event: dict[str, object]) -> str:
    problems = event.get("problems")
    first = problems[0] if isinstance(problems, list) and problems else None
    return str(first.get("what", "")) if isinstance(first, dict) else ""
