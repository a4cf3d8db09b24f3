"""Worker processes that outlived their launcher: waits for them, then ends those that are certainly ours, by pid.

A pid alone proves nothing (the system gives it to the next process); a process is ours only if it already lived when our heartbeat
was written under that pid on this host, and is a Paceline worker by its command line.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

import psutil

from paceline.errors import OccupiedError
from paceline.files import Lock, read_records
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import RunFile

_GONE_S = 10.0
_CLOCK_SLACK_S = 0.05  # process start times are counted in ticks of 10 ms


def end_orphans(layout: RunLayout, run: RunFile, wait_s: float) -> list[str]:
    """Returns when no worker of an earlier attempt lives any more; what it did, in words. The caller holds the owner lock."""
    lock = Lock(layout.workers_lock)
    try:
        if lock.acquire_within(wait_s):
            return []
        orphans = find_orphans(layout, run.attempts[-1].attempt) if run.attempts else []
        for process in orphans:
            _signal(process)
        if lock.acquire_within(_GONE_S):
            pids = ", ".join(str(process.pid) for process in orphans)
            did = f"ended worker processes (pid {pids})" if orphans else "waited for worker processes"
            return [f"{did} left over from attempt {run.attempts[-1].attempt}"]
    finally:
        lock.release()
    raise OccupiedError(
        "worker processes of an earlier attempt are still alive and could not be ended",
        str(layout.workers_lock),
        f"see who holds it with: fuser -v {layout.workers_lock}",
    )


def find_orphans(layout: RunLayout, attempt: int) -> list[psutil.Process]:
    """Living worker processes that wrote heartbeats of this attempt on this host."""
    found = []
    for path in sorted(layout.heartbeat(0).parent.glob("rank_*.jsonl")):
        beats = [b for b in read_records(path) if b.get("attempt") == attempt and b.get("host") == socket.gethostname()]
        if not beats:
            continue
        first = min(beats, key=lambda beat: float(beat["time"]))
        process = _our_worker(int(first["pid"]), float(first["time"]))
        if process is not None:
            found.append(process)
    return found


def _our_worker(pid: int, beat_time: float) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        is_older = process.create_time() <= beat_time + _CLOCK_SLACK_S
        return process if is_older and _is_worker(process.cmdline()) else None
    except psutil.Error:
        return None


def _is_worker(command_line: Sequence[str]) -> bool:
    return any("paceline.worker" in part for part in command_line)


def _signal(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()
