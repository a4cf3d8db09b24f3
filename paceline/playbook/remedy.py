"""What to type where a phase failed: the commands that the playbook names, with this phase's run and configuration in them.

fill_remedy(["paceline triage {run} --symptom deadlock"], run, …)    -> ["paceline triage runs/validate/endure/run --symptom deadlock"]
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.playbook.phase import ANY
from paceline.playbook.verdicts import NOT_MEASURED, NOT_MET


def choose_remedy(remedies: Mapping[str, Sequence[str]], missed: Sequence[str]) -> list[str]:
    """The lines for the results that were missed, and those for any; all of them where no result was, but the command failed."""
    words = {part for name in missed for part in name.split(".")}
    chosen = [lines for name, lines in remedies.items() if name == ANY or not missed or name in words]
    return list(dict.fromkeys(line for lines in chosen for line in lines))


def choose_remedies(
    remedies: Mapping[str, Sequence[str]], unmeasured: Mapping[str, Sequence[str]], gate: Sequence[Mapping[str, Any]]
) -> list[str]:
    """By what came of the conditions of a gate: of what was not measured, and need only be measured, nothing is to be mended."""
    missed, lines = list[str](), list[str]()
    is_clear = False
    for each in gate:
        if each["verdict"] == NOT_MEASURED and (known := _for_names(unmeasured, each["values"])):
            lines, is_clear = [*lines, *known], True
        elif each["verdict"] in (NOT_MET, NOT_MEASURED):
            missed += each["values"]
    if missed or not is_clear:
        lines += choose_remedy(remedies, missed)
    return list(dict.fromkeys(lines))


def _for_names(lines: Mapping[str, Sequence[str]], names: Iterable[str]) -> list[str]:
    words = {part for name in names for part in name.split(".")}
    return [line for name, each in lines.items() if name in words for line in each]


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
