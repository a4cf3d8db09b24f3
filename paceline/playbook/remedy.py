"""What to type where a phase failed: the commands that the playbook names, with this phase's run and configuration in them.

fill_remedy(["paceline triage {run} --symptom deadlock"], run, …)    -> ["paceline triage runs/validate/endure/run --symptom deadlock"]
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.playbook.phase import ANY


def choose_remedy(remedies: Mapping[str, Sequence[str]], missed: Sequence[str]) -> list[str]:
    """The lines for the results that were missed, and those for any; all of them where no result was, but the command failed."""
    words = {part for name in missed for part in name.split(".")}
    chosen = [lines for name, lines in remedies.items() if name == ANY or not missed or name in words]
    return list(dict.fromkeys(line for lines in chosen for line in lines))


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
