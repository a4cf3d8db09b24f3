"""What identifies the rows a run trains on, before anything is opened. No torch, no numpy: the command line imports this.

find_table("data/tenrec", max_users=50_000)      the record of a prepared directory that has those users, or DataError
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.recipes.prepared import RECORD, Prepared, read_prepared

FAMILY, NAME = "tenrec", "impressions"
VERSION = 1
"""Raised when the same source gives other columns."""
GENERATOR_VERSION = 1
"""Raised whenever generate.py or world.py draws other rows from the same numbers."""
_AGAIN = "paceline prepare tenrec --input FILE --output"


def identify_generated(users: int, items: int, rows: int, seed: int) -> str:
    """The digest of everything that generated rows follow from."""
    scope = {"version": GENERATOR_VERSION, "users": users, "items": items, "rows": rows, "seed": seed}
    return f"generated:{digest_of(scope)}"


def identify_table(prepared: Prepared) -> str:
    """The digest of the content of all columns; their place does not matter."""
    digests = {name: made.sha256 for name, made in prepared.files.items()}
    return f"tenrec:{digest_of({'version': prepared.version, 'files': digests})}"


def digest_of(scope: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(scope, sort_keys=True).encode()).hexdigest()


def find_table(path: str | Path, max_users: int | None = None) -> Prepared:
    """The record of a directory that holds the rows of the first `max_users` users, or of all; its files are of the right length."""
    directory = Path(path).expanduser()
    where = f"data.path={path}"
    prepared = read_prepared(directory)
    if prepared is None:
        type_this = (
            f"paceline prepare tenrec --input {path} --output DIR" if directory.is_file() else f"{_AGAIN} {path}"
        )
        raise DataError(_why_not(directory), where, f"type: {type_this}")
    if (prepared.family, prepared.name) != (FAMILY, NAME):
        what = f"this directory holds {prepared.family} {prepared.name}, and not rows of the Tenrec schema"
        raise DataError(what, where, "give what `paceline prepare tenrec` wrote")
    if prepared.version != VERSION:
        what = f"version {prepared.version} of the preparation made this, and this program reads version {VERSION}"
        raise DataError(what, where, f"make it again: {_AGAIN} {path}")
    for name, made in prepared.files.items():
        size = (directory / name).stat().st_size if (directory / name).is_file() else None
        if size != made.bytes:
            state = "missing" if size is None else f"of {size:,} bytes, and was of {made.bytes:,}"
            raise DataError(f"{name} is {state}", where, f"make it again: {_AGAIN} {path}")
    _check_scope(prepared, max_users, str(path))
    return prepared


def _check_scope(prepared: Prepared, max_users: int | None, path: str) -> None:
    """A part is never taken for the whole, nor for a larger part."""
    held = None if prepared.counts["rows_left_out"] == 0 else int(prepared.counts["users"])
    if held is not None and (max_users is None or max_users > held):
        asked = "all of them (data.max_users=null)" if max_users is None else f"data.max_users={max_users}"
        what = f"this directory holds the first {held:,} users, and {asked} is asked for"
        do = f"set data.max_users={held}, or prepare another directory without --max-users"
        raise DataError(what, f"data.path={path} and data.max_users", do)


def _why_not(directory: Path) -> str:
    if not directory.exists():
        return "the prepared directory does not exist"
    if not directory.is_dir():
        return "a file was given where a prepared directory is needed"
    if (directory / RECORD).exists():
        return f"{RECORD} of this directory cannot be understood"
    return f"this is no prepared directory, or its preparation did not end: there is no {RECORD}"
