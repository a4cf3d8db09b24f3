"""Ends an attempt that cannot end itself: kills its ranks with everything they started, by descriptor, and nothing else.

A process is ours if it holds a pulse of this attempt, or if a process that we hold, alive, is its parent. Who kills may be among them, as a
watcher is that a rank has started: it is left out, because it has yet to write down how the attempt ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from paceline.files import Lock
from paceline.supervise.rank_process import HeldProcess, open_process
from paceline.supervise.tree import hold_descendants, list_children
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import load_run_file

_GONE_S = 10.0
_OWNER_S = 3.0


def kill_attempt(ranks: Iterable[HeldProcess], proofs: Sequence[str] = ()) -> list[int]:
    """Kills the given processes and what they started, and whatever else has a file in its memory whose path begins with one of these;
    returns the pids that did not go (uninterruptible, or somebody else's)."""
    deadline = time.monotonic() + _GONE_S
    given = {process.pid: process for process in ranks}
    held = dict(given)
    try:
        # Again until nothing is found: a process can start another one between the look and the signal.
        while time.monotonic() < deadline:
            held |= _find_holders(proofs, held) if proofs else {}
            held |= {pid: each for pid, each in hold_descendants(held, list_children()).items() if pid not in held}
            living = [process for pid, process in held.items() if pid != os.getpid() and process.is_alive]
            if not living:
                return []
            for process in living:
                with contextlib.suppress(PermissionError):
                    process.signal(signal.SIGKILL)
            time.sleep(0.05)
        return sorted(process.pid for process in living if process.is_alive)
    finally:
        for pid, process in held.items():
            if pid not in given:
                process.close()


def _find_holders(proofs: Sequence[str], known: Mapping[int, HeldProcess]) -> dict[int, HeldProcess]:
    """Whatever has a pulse of the attempt in its memory: a rank that nobody has seen yet, a process that it forked."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    opened = {pid: open_process(pid, *proofs) for pid in pids if pid not in known and pid != os.getpid()}
    return {pid: process for pid, process in opened.items() if process is not None}


def close_books(layout: RunLayout, attempt: int, reason: str, step: int | None) -> bool:
    """Writes how the attempt ended where its owner was killed with it, as a rank 0 is that claimed the run; False: somebody owns it."""
    lock = Lock(layout.owner_lock)
    try:
        if not lock.acquire_within(_OWNER_S):
            return False
        run = load_run_file(layout.root)
        if run is None or run.attempts[-1].attempt != attempt or run.attempts[-1].state != "running":
            return False
        last = run.attempts[-1]
        last.state, last.reason, last.step, last.exit_code, last.ended = "failed", reason, step, 5, time.time()
        run.state, run.reason = "failed", reason
        run.save(layout)
        return True
    finally:
        lock.release()
