"""The columns of a table as files that every process of a host maps: one copy in memory for all of them.

Each file is the bare little-endian numbers of a column, and says in its name how wide they are. What they are, how many, and their
SHA-256 stand in prepared.json. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import DataError
from paceline.recipes.prepared import Making, check_made
from paceline.recipes.tenrec.columns import HISTORY
from paceline.recipes.tenrec.source import find_table, identify_table
from paceline.recipes.tenrec.table import NONE, Items, Table, UInt8s, UInt16s, UInt32s, Users

ROWS = {"user": "<u4", "item": "<u4", "actions": "<u1", "watching": "<u2", "history": "<u4", "order": "<u4"}
OFFSETS = {"offsets": "<u8"}
USERS = {"gender": "<u1", "age": "<u1", "name": "<i8"}
ITEMS = {"category": "<u2", "name": "<i8", "exposures": "<i8", "clicks": "<i8"}
_PIECE = 1 << 23
"""rows ordered at a time: what memory holds beside the counts of users"""


def file_name(column: str, kind: str, of: str = "") -> str:
    """history.u4, users-gender.u1"""
    return f"{of}{'-' if of else ''}{column}.{kind[1:]}"


def map_column(directory: Path, name: str, kind: str) -> npt.NDArray[Any]:
    """Read only; an empty file cannot be mapped, and is an empty array."""
    file = directory / name
    if file.stat().st_size == 0:
        return np.empty(0, kind)
    return np.memmap(file, kind, mode="r").view(np.ndarray)


def open_table(path: str | Path, max_users: int | None = None, *, is_verified: bool = True) -> Table:
    """What `paceline prepare tenrec` wrote, mapped; DataError where it is not whole, or not of this scope.

    With `is_verified` all of it is read once, and a single changed bit found; one process of a host is enough for that.
    """
    directory = Path(path).expanduser()
    prepared = find_table(path, max_users)
    faults = check_made(directory, prepared) if is_verified else []
    if faults:
        do = f"make it again: paceline prepare tenrec --input FILE --output {path}"
        raise DataError(f"the prepared rows are damaged: {', '.join(faults)}", f"data.path={path}", do)
    return map_table(directory, identify_table(prepared))


def map_table(directory: Path, identity: str) -> Table:
    def column(name: str, kind: str, of: str = "") -> npt.NDArray[Any]:
        return map_column(directory, file_name(name, kind, of), kind)

    rows = {name: column(name, kind) for name, kind in (ROWS | OFFSETS).items()}
    rows["history"] = rows["history"].reshape(-1, HISTORY)
    users = Users(**{name: column(name, kind, "users") for name, kind in USERS.items()})
    items = Items(**{name: column(name, kind, "items") for name, kind in ITEMS.items()})
    return Table(**rows, users=users, items=items, identity=identity)


class TableWriter:
    """Writes a table block by block; memory grows with users and items, and not with rows."""

    def __init__(self, making: Making) -> None:
        self._making = making
        self._rows_of_users = np.zeros(1, np.int64)
        self._exposures, self._clicks = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._last_user, self._is_grouped = -1, True
        self.num_rows = self.num_clicks = self.num_without_history = self.num_in_history = 0

    def add(self, user: UInt32s, item: UInt32s, actions: UInt8s, watching: UInt16s, history: UInt32s) -> None:
        if not len(user):
            return
        blocks: dict[str, npt.NDArray[Any]] = {
            "user": user,
            "item": item,
            "actions": actions,
            "watching": watching,
            "history": history,
        }
        for name, block in blocks.items():
            write_column(self._making, file_name(name, ROWS[name]), block, ROWS[name])
        self._rows_of_users = _counted(self._rows_of_users, user)
        self._exposures = _counted(self._exposures, item)
        self._clicks = _counted(self._clicks, item[actions & 1 > 0])
        self._is_grouped = self._is_grouped and self._last_user <= int(user[0]) and bool(np.all(user[:-1] <= user[1:]))
        self._last_user = int(user[-1])
        self.num_rows += len(user)
        self.num_clicks += int(np.count_nonzero(actions & 1))
        has_some, has_item = np.zeros(len(user), np.bool_), np.zeros(len(user), np.bool_)
        for place in range(HISTORY):
            has_some |= history[:, place] != NONE
            has_item |= history[:, place] == item
        self.num_without_history += int(np.count_nonzero(~has_some))
        self.num_in_history += int(np.count_nonzero(has_item))

    def finish(self, users: Users, category: UInt16s, item_names: npt.NDArray[np.int64]) -> None:
        """What is known at the end: the order of rows, users, items."""
        offsets = np.zeros(len(users.name) + 1, np.int64)
        np.cumsum(_reaching(self._rows_of_users, len(users.name)), out=offsets[1:])
        write_column(self._making, file_name("offsets", "<u8"), offsets, OFFSETS["offsets"])
        for block in self._order(offsets):
            write_column(self._making, file_name("order", "<u4"), block, ROWS["order"])
        for name, kind in USERS.items():
            write_column(self._making, file_name(name, kind, "users"), getattr(users, name), kind)
        num = len(item_names)
        items = Items(category, item_names, _reaching(self._exposures, num), _reaching(self._clicks, num))
        for name, kind in ITEMS.items():
            write_column(self._making, file_name(name, kind, "items"), getattr(items, name), kind)

    def _order(self, offsets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.integer]]:
        """Rows sorted by user, a range of users at a time; rows that were never mixed stand in order already."""
        if self._is_grouped:
            for begin in range(0, self.num_rows, _PIECE):
                yield np.arange(begin, min(begin + _PIECE, self.num_rows))
            return
        user = np.memmap(self._making.written(file_name("user", "<u4")), "<u4", mode="r")
        first, num_users = 0, len(offsets) - 1
        while first < num_users:
            end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _PIECE, side="right")) - 1)
            rows = np.concatenate(
                [
                    begin + np.flatnonzero((piece >= first) & (piece < end))
                    for begin in range(0, self.num_rows, _PIECE)
                    for piece in (user[begin : begin + _PIECE],)
                ]
            )
            yield rows[np.argsort(user[rows], kind="stable")]
            first = end


def write_column(making: Making, name: str, values: npt.NDArray[Any], kind: str) -> None:
    making.write(name, np.ascontiguousarray(values, kind).reshape(-1).view(np.uint8).data)


def _counted(counts: npt.NDArray[np.int64], numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    if not len(numbers):
        return counts
    least = int(numbers.max()) + 1
    if least > len(counts):
        counts = _reaching(counts, max(least, 2 * len(counts)))
    np.add.at(counts, numbers, 1)
    return counts


def _reaching(counts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    longer = np.zeros(length, np.int64)
    longer[: min(length, len(counts))] = counts[:length]
    return longer
