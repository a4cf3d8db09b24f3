"""One run, one owner: what everybody who takes a run directory has to look at first, whether launcher, worker or a foreign loop.

check_foreign(layout, "choose an empty or new directory")     # OccupiedError: it holds thesis.tex
close_earlier(run); save_fenced(layout, run)                  # run.json of a new attempt
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import OccupiedError
from paceline.files import Lock
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import remove_pulse_directory
from paceline.telemetry.run_file import SDK_RECIPE, RunFile, load_run_file

OWNER_KILLED = "its launcher was killed"
LOOP_KILLED = "the process ended without a word (killed, or os._exit)"
"""of a foreign loop, which has no launcher of ours"""
_FENCE_S = 10.0


def check_foreign(layout: RunLayout, do: str) -> None:
    """Refuses a directory with things in it that no run put there (our locks and a torn first write do not count)."""
    if layout.run.exists():
        return
    locks = (layout.owner_lock, layout.workers_lock, layout.attempt_lock)
    ours = {path.name for path in (*locks, layout.rendezvous)}
    others = sorted(
        entry.name
        for entry in os.scandir(layout.root)
        if entry.name not in ours and not entry.name.startswith(f".{layout.run.name}.")
    )
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        what = f"the directory is not empty and not a run of Paceline (it holds {shown})"
        raise OccupiedError(what, str(layout.root), do)


def living_owner(layout: RunLayout, do: str) -> OccupiedError:
    run = load_run_file(layout.root)
    pid = run.attempts[-1].owner_pid if run is not None and run.attempts else None
    who = f"process {pid}" if pid is not None else "a process that is just starting it"
    return OccupiedError(f"this run is still running: {who} owns it", str(layout.root), do)


def save_fenced(layout: RunLayout, run: RunFile) -> None:
    """Begins the attempt for everybody who reads run.json, at a moment at which nobody makes a checkpoint visible."""
    fence = Lock(layout.attempt_lock)
    try:
        if not fence.acquire_within(_FENCE_S):
            raise OccupiedError(
                f"a process of an earlier attempt has held a lock of this run for {_FENCE_S:.0f} s",
                str(layout.attempt_lock),
                f"see who holds it with: fuser -v {layout.attempt_lock}",
            )
        run.save(layout)
    finally:
        fence.release()


def unannounced_end(run: RunFile) -> str:
    """Why a run has no owner, though nobody wrote that it has ended."""
    return LOOP_KILLED if run.recipe == SDK_RECIPE else OWNER_KILLED


def close_earlier(run: RunFile) -> list[str]:
    """Ends the books of earlier attempts; what one says to the operator."""
    for attempt in run.attempts:
        remove_pulse_directory(Path(attempt.pulses))
        if attempt.state == "running":
            attempt.state, attempt.reason, attempt.ended = "failed", unannounced_end(run), None
    if not run.attempts:
        return []
    last = run.attempts[-1]
    how = f"{last.state}: {last.reason}" if last.reason and last.reason != last.state else last.state
    reached = f" at step {last.step}" if last.step is not None else ""
    return [f"attempt {last.attempt} of this run ended{reached} ({how})"]
