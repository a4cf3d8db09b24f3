"""Thresholds of a playbook, by name: what a gate asks for as `limits.NAME`.

    limits: {pace: null, efficiency: 0.9}

null: nobody has set it, and what it would decide is not judged. `limits.pace=39` typed sets it.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.nearest import nearest
from paceline.config.source import Entry, Layer, show
from paceline.errors import Problem
from paceline.playbook.verdicts import LIMITS


def read_limits(written: Mapping[str, Entry], typed: Layer, problems: list[Problem]) -> dict[str, float | None]:
    """Those that are written, with what was typed in their place."""
    found = {key.removeprefix(LIMITS): entry for key, entry in written.items() if key.startswith(LIMITS)}
    for key, entry in typed.entries.items():
        name = key.removeprefix(LIMITS)
        if name == key:
            continue
        if name not in found:
            close = nearest(name, found)
            what = f"there is no threshold {key}" + (f"; did you mean {LIMITS}{close}?" if close else "")
            problems.append(Problem(what, entry.origin, f"use one of {', '.join(found) or 'none'}"))
        else:
            found[name] = entry
    for name, entry in found.items():
        if entry.value is not None and (isinstance(entry.value, bool) or not isinstance(entry.value, int | float)):
            what = f"{LIMITS}{name}={show(entry.value)} is not a number"
            problems.append(Problem(what, entry.origin, "give a number, or null: not judged"))
    return {name: entry.value for name, entry in found.items()}
