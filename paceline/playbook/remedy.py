"""What to type where a phase failed: the commands that the playbook names, with this phase's run and configuration in them.

fill_remedy(["paceline triage {run} --symptom deadlock"], run, …)    -> ["paceline triage runs/validate/endure/run --symptom deadlock"]
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def fill_remedy(lines: Sequence[str], run: Path, config: str, typed: Sequence[str], place: Path) -> list[str]:
    """`{run}`, `{config}` with what was typed, and `{place}`; as one would type them."""
    filled = {
        "{run}": shlex.quote(str(run)),
        "{config}": shlex.join([config, *typed]),
        "{place}": shlex.quote(str(place)),
    }
    found = []
    for line in lines:
        for word, value in filled.items():
            line = line.replace(word, value)
        found.append(line)
    return found
