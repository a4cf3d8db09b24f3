"""The report about what was left out of a preparation: errors.tsv, with a path and a reason in each line. No torch, no numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.files import write_text

ERRORS = "errors.tsv"


@dataclass(frozen=True)
class Fault:
    """Something that was left out, and why."""

    path: str
    """relative to the input; with a line's number where a line is meant"""
    reason: str


def write_errors(path: Path, faults: Sequence[Fault]) -> None:
    """Where nothing was left out, there is no report."""
    if not faults:
        path.unlink(missing_ok=True)
        return
    rows = sorted((fault.path, fault.reason) for fault in faults)
    lines = ["path\treason", *("\t".join(map(_plain, row)) for row in rows), ""]
    write_text(path, "\n".join(lines))


def _plain(field: str) -> str:
    """What a field of a TSV can hold; a tab in a file's name becomes its escape."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in field)
