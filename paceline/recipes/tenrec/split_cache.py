"""A split kept beside its table, so that ranks map one copy of it: found by what it follows from, checked before it is used.

data/tenrec/split-3f0c…/train.u4, validation.u4, test.u4, prepared.json

The name is the digest of the table's content, the version and every parameter; the record says them again. One that is damaged, or of
something else, is made again.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from paceline.files import storage_errors
from paceline.recipes.prepared import Making, Prepared, check_made, make_once, read_prepared
from paceline.recipes.tenrec.source import digest_of
from paceline.recipes.tenrec.split import SIDES, VERSION, Parameters, Split, split_table
from paceline.recipes.tenrec.stored import map_column, write_column
from paceline.recipes.tenrec.table import Table

_FAMILY, _KIND = "tenrec-split", "<u4"
_OPTION = "data.path=DIR or data.cache=DIR"
"""what chooses the place"""
_WAIT_S = 600.0
"""for another rank that makes the same one"""


def load_split(table: Table, parameters: Parameters, beside: str | Path | None) -> Split:
    """The split of a table whose directory is `beside`; made in memory where there is none, or none that can be written to."""
    if beside is None:
        return split_table(table, parameters)
    scope = {"table": table.identity, "version": VERSION} | asdict(parameters)
    directory = Path(beside).expanduser() / f"split-{digest_of(scope)[:16]}"
    if read_prepared(directory) is None and not os.access(directory.parent, os.W_OK):
        return split_table(table, parameters)
    make_once(
        directory,
        lambda found: _is_usable(directory, found, table, parameters),
        lambda found: _make(directory, found, table, parameters),
        _WAIT_S,
        _OPTION,
    )
    train, validation, test = (map_column(directory, f"{side}.u4", _KIND) for side in SIDES)
    return Split(table, parameters, train, validation, test)


def _is_usable(directory: Path, record: Prepared | None, table: Table, parameters: Parameters) -> bool:
    if record is None:
        return False
    said = (record.family, record.version, dict(record.inputs), dict(record.parameters))
    is_of_this = said == (_FAMILY, VERSION, {"table": table.identity}, asdict(parameters))
    return is_of_this and not check_made(directory, record)


def _make(directory: Path, record: Prepared | None, table: Table, parameters: Parameters) -> None:
    split = split_table(table, parameters)
    with storage_errors(directory, _OPTION), Making(directory, record, is_cache=True) as making:
        for side in SIDES:
            making.add(f"{side}.u4")
            write_column(making, f"{side}.u4", split.rows(side), _KIND)
        making.finish(
            family=_FAMILY,
            name=parameters.kind,
            version=VERSION,
            inputs={"table": table.identity},
            source={},
            counts={side: len(split.rows(side)) for side in SIDES},
            parameters=asdict(parameters),
        )
