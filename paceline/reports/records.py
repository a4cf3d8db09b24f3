"""Records of sweeps and playbooks as a report reads them: one JSON object of a known version, whatever may be missing in it.

record = read_versioned(root / "sweep.json", newest=1, noun="sweep")
cases = objects_in(record, "cases", "sweep.json", gaps)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.files import read_json
from paceline.reports.amounts import text


def read_versioned(path: Path, newest: int, noun: str) -> dict[str, Any]:
    """The object in that file; refused where it cannot be read, or where a newer Paceline wrote it."""
    try:
        record = read_json(path)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        do = f"start the {noun} again with the same command: it goes on, and writes the file anew"
        raise UsageError(f"{path.name} is damaged", str(path), do)
    version = record.get("v", newest)
    if not isinstance(version, int) or version > newest:
        what = f"{path.name} was written by a newer Paceline (version {text(version)}, this one reads up to {newest})"
        raise UsageError(what, str(path), "install the newer version")
    return record


def objects_in(record: Mapping[str, Any], name: str, file: str, gaps: list[str]) -> list[Mapping[str, Any]]:
    """A list of objects; what is none is left out, and `gaps` says so."""
    found = record.get(name)
    if not isinstance(found, list):
        gaps.append(f"{file} has no list of {name}")
        return []
    whole: list[Mapping[str, Any]] = [each for each in found if isinstance(each, dict)]
    if len(whole) < len(found):
        gaps.append(f"{len(found) - len(whole):,} of the {name} in {file} are damaged and left out")
    return whole
