"""Why a directory that holds a run cannot be taken for this one. Each error says what to type instead.

check_same_run(layout, run, description, origin)       # OccupiedError: run.seed: 0 → 1
"""

from __future__ import annotations

from paceline.config.changes import find_changes, list_changes
from paceline.errors import OccupiedError
from paceline.launch.description import RunDescription
from paceline.launch.origin import Origin
from paceline.telemetry import ownership
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import SDK_RECIPE, RunFile


def check_foreign(layout: RunLayout) -> None:
    ownership.check_foreign(layout, "choose an empty or new directory with --out DIR")


def living_owner(layout: RunLayout) -> OccupiedError:
    return ownership.living_owner(layout, f"paceline stop {layout.root}, or choose another directory with --out DIR")


def check_same_run(layout: RunLayout, run: RunFile, description: RunDescription, origin: Origin) -> None:
    root = str(layout.root)
    if origin.must_be_new:
        do = "leave --resume never out to go on with it, or choose another directory with --out DIR"
        raise OccupiedError("the directory holds a run already, and --resume never asks for a new one", root, do)
    if run.recipe == SDK_RECIPE:
        do = "choose another directory with --out DIR, or go on with that run by starting its own script"
        raise OccupiedError("the directory holds a run of the SDK, which a recipe cannot go on with", root, do)
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
