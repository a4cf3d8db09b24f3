"""Thresholds of a playbook, by name: what a gate asks for as `limits.NAME`.

    limits: {pace: null, efficiency: 0.9}

null: nobody has set it, and what it would decide is not judged. `limits.pace=39` typed sets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from paceline.config.nearest import nearest
from paceline.config.source import Entry, Layer, show
from paceline.errors import Problem
from paceline.playbook.verdicts import LIMITS

_LEAST = re.compile(r">=?\s*limits\.(\w+)")
"""the threshold in `pace >= limits.pace`"""


def read_limits(
    written: Mapping[str, Entry], typed: Layer, gates: Iterable[str], problems: list[Problem]
) -> dict[str, float | None]:
    """Those that are written, with what was typed in their place; `gates` are the conditions that ask for them."""
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
    least = {name for gate in gates for name in _LEAST.findall(gate)}
    for name, entry in found.items():
        if entry.value is not None and (isinstance(entry.value, bool) or not isinstance(entry.value, int | float)):
            what = f"{LIMITS}{name}={show(entry.value)} is not a number"
            problems.append(Problem(what, entry.origin, "give a number, or null: not judged"))
        # What every number meets would read as passed, where in truth nobody has set a threshold.
        elif entry.value is not None and (entry.value < 0 or (entry.value == 0 and name in least)):
            bound = "above 0" if name in least else "0 or above"
            what = f"{LIMITS}{name}={show(entry.value)} is no threshold: it must be {bound}"
            problems.append(Problem(what, entry.origin, "give another number, or null: not judged"))
    return {name: entry.value for name, entry in found.items()}
