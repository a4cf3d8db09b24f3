"""Why a directory cannot be taken for a run: a stranger's files, a living owner, or another run. Each error says what to type instead.

check_foreign(layout)                                  # OccupiedError: it holds thesis.tex
check_same_run(layout, run, description, origin)       # OccupiedError: run.seed: 0 → 1
"""

from __future__ import annotations

import os

from paceline.config.changes import find_changes, list_changes
from paceline.errors import OccupiedError
from paceline.launch.description import RunDescription
from paceline.launch.origin import Origin
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import RunFile, load_run_file


def check_foreign(layout: RunLayout) -> None:
    """Refuses a directory with things in it that no run put there (our locks and a torn first write do not count)."""
    if layout.run.exists():
        return
    ours = {layout.owner_lock.name, layout.workers_lock.name, layout.attempt_lock.name}
    others = sorted(
        entry.name
        for entry in os.scandir(layout.root)
        if entry.name not in ours and not entry.name.startswith(f".{layout.run.name}.")
    )
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise OccupiedError(
            f"the directory is not empty and not a run of Paceline (it holds {shown})",
            str(layout.root),
            "choose an empty or new directory with --out DIR",
        )


def living_owner(layout: RunLayout) -> OccupiedError:
    run = load_run_file(layout.root)
    pid = run.attempts[-1].owner_pid if run is not None and run.attempts else None
    who = f"process {pid}" if pid is not None else "a process that is just starting it"
    return OccupiedError(
        f"this run is still running: {who} owns it",
        str(layout.root),
        f"paceline stop {layout.root}, or choose another directory with --out DIR",
    )


def check_same_run(layout: RunLayout, run: RunFile, description: RunDescription, origin: Origin) -> None:
    root = str(layout.root)
    if origin.must_be_new:
        do = "leave --resume never out to go on with it, or choose another directory with --out DIR"
        raise OccupiedError("the directory holds a run already, and --resume never asks for a new one", root, do)
    old, new = run.identity, description.identity
    if old.get("fingerprint") != new.get("fingerprint"):
        changes = find_changes(old.get("values", {}), new.get("values", {}))
        raise OccupiedError(
            list_changes("the directory belongs to another run; different are:", changes),
            root,
            "choose another directory with --out DIR (without --out each configuration gets its own)",
        )
    if origin.parent is not None:
        do = f"leave --resume {origin.parent['given']} out to go on with it, or choose another directory with --out DIR"
        raise OccupiedError("the directory holds a run that was not forked from this checkpoint", root, do)
