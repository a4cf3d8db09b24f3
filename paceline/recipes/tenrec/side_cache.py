"""One side of a split kept beside its table, so that ranks map one copy of it: found by what it follows from, checked before it is used.

data/tenrec/side-9a41…/positives.u4, begins.i8, lengths.u4, num_positives.u4, num_negatives.u4, prepared.json
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.files import storage_errors
from paceline.recipes.prepared import Making, Prepared, check_made, make_once, read_prepared
from paceline.recipes.tenrec.side import VERSION, Side, build_side
from paceline.recipes.tenrec.source import digest_of
from paceline.recipes.tenrec.split import VERSION as SPLIT_VERSION
from paceline.recipes.tenrec.split import Split
from paceline.recipes.tenrec.stored import file_name, map_column, write_column

_FAMILY = "tenrec-side"
_COLUMNS = {"positives": "<u4", "begins": "<i8", "lengths": "<u4", "num_positives": "<u4", "num_negatives": "<u4"}
_OPTION = "data.path=DIR or data.cache=DIR"
"""what chooses the place"""
_WAIT_S = 600.0
"""for another rank that makes the same one"""


def load_side(split: Split, name: str, actions: int, beside: str | Path | None) -> Side:
    """A side of a table whose directory is `beside`; built in memory where there is none, or none that can be written to."""
    if beside is None:
        return build_side(split, name, actions)
    scope = {"side": name, "actions": actions, "split_version": SPLIT_VERSION} | asdict(split.parameters)
    digest = digest_of({"table": split.table.identity, "version": VERSION} | scope)
    directory = Path(beside).expanduser() / f"side-{digest[:16]}"
    if read_prepared(directory) is None and not os.access(directory.parent, os.W_OK):
        return build_side(split, name, actions)
    make_once(
        directory,
        lambda found: _is_usable(directory, found, split, scope),
        lambda found: _make(directory, found, build_side(split, name, actions), scope),
        _WAIT_S,
        _OPTION,
    )
    columns = {column: map_column(directory, file_name(column, kind), kind) for column, kind in _COLUMNS.items()}
    return Side(split.table, split.rows(name), **columns)


def _is_usable(directory: Path, record: Prepared | None, split: Split, scope: dict[str, Any]) -> bool:
    if record is None:
        return False
    said = (record.family, record.version, dict(record.inputs), dict(record.parameters))
    return said == (_FAMILY, VERSION, {"table": split.table.identity}, scope) and not check_made(directory, record)


def _make(directory: Path, record: Prepared | None, side: Side, scope: dict[str, Any]) -> None:
    with storage_errors(directory, _OPTION), Making(directory, record, is_cache=True) as making:
        for column, kind in _COLUMNS.items():
            making.add(file_name(column, kind))
            write_column(making, file_name(column, kind), getattr(side, column), kind)
        making.finish(
            family=_FAMILY,
            name=scope["side"],
            version=VERSION,
            inputs={"table": side.table.identity},
            source={},
            counts={"positives": len(side.positives)},
            parameters=scope,
        )
