"""A sweep's directory, taken by one driver at a time.

with open_sweep(root) as ledger: …      # OccupiedError where another one runs it, or where other things lie
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import OccupiedError
from paceline.files import Lock, storage_errors
from paceline.sweep.ledger import Ledger

LEDGER = "ledger.sqlite"


@contextlib.contextmanager
def open_sweep(root: Path) -> Iterator[Ledger]:
    """The ledger of a sweep that nobody else runs; OccupiedError where somebody does, or where other things lie."""
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith("."))
        if others and LEDGER not in others:
            what = f"the directory is not empty and not a sweep of Paceline (it holds {', '.join(others[:5])})"
            raise OccupiedError(what, str(root), "choose an empty or new directory with --out DIR")
        lock = Lock(root / ".driver.lock")
        # A driver that was killed may have been starting a trial, which holds the lock for an instant.
        if not lock.acquire_within(2.0):
            lock.release()
            holder = _holder(root)
            raise OccupiedError(f"this sweep is still running{holder}", str(root), "wait for it, or stop that process")
    try:
        with storage_errors(root):
            (root / ".driver.pid").write_text(str(os.getpid()))
            (root / "trials").mkdir(exist_ok=True)
        ledger = Ledger(root / LEDGER)
        try:
            yield ledger
        finally:
            ledger.close()
    finally:
        lock.release()


def _holder(root: Path) -> str:
    with contextlib.suppress(OSError):
        return f": process {(root / '.driver.pid').read_text().strip()} runs it"
    return ""
