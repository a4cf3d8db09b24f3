"""Which rows are trained on, and which are held out; by user or by row, never by a time that the data does not have.

user   whole users: nothing of a held-out user is trained on. The side follows from the user's id and the seed alone.
row    of each user the first rows are trained on, the next validate, the last test: order is the order of the source.

Popularity, and whatever else is counted, comes from the training rows: `Split.item_counts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from paceline.errors import DataError
from paceline.recipes.tenrec.table import Ints, Table, UInt8s, UInt32s, UInt64s

Kind = Literal["user", "row"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SIDES = ("train", "validation", "test")
VERSION = 1
"""Raised whenever the same table and parameters give other sides."""
_PIECE = 1 << 22
"""rows looked at together: memory is a byte for each row, and what comes out"""


@dataclass(frozen=True)
class Parameters:
    """Everything that the sides follow from, beside the table."""

    kind: Kind = "user"
    validation_share: float = 0.1
    test_share: float = 0.1
    seed: int = 0
    """for users: another seed holds out others"""
    max_users: int | None = None
    """only the rows of the first ones; None: of all"""


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of each side, ascending."""

    table: Table
    parameters: Parameters
    train: UInt32s
    validation: UInt32s
    test: UInt32s

    def rows(self, side: str) -> UInt32s:
        return {"train": self.train, "validation": self.validation, "test": self.test}[side]

    def item_counts(self) -> tuple[Ints, Ints]:
        """Exposures and clicks of each item, at its number, over the training rows."""
        exposures = np.zeros(self.table.num_items + 1, np.int64)
        clicks = np.zeros_like(exposures)
        for begin in range(0, len(self.train), _PIECE):
            rows = self.train[begin : begin + _PIECE]
            item = self.table.item[rows]
            exposures += np.bincount(item, minlength=len(exposures))
            clicks += np.bincount(item[self.table.actions[rows] & 1 > 0], minlength=len(clicks))
        return exposures, clicks


def split_table(table: Table, parameters: Parameters) -> Split:
    """DataError where a side that has a share gets no row."""
    sides = _sides_by_user(table, parameters) if parameters.kind == "user" else _sides_by_row(table, parameters)
    if parameters.max_users is not None and parameters.max_users < table.num_users:
        sides[table.user >= parameters.max_users] = len(SIDES)
    train, validation, test = (_rows_of(sides, side) for side in range(len(SIDES)))
    split = Split(table, parameters, train, validation, test)
    shares = {"train": 1.0, "validation": parameters.validation_share, "test": parameters.test_share}
    empty = [side for side, share in shares.items() if share > 0 and not len(split.rows(side))]
    if empty:
        what = f"no row is for {' and '.join(empty)}: {table.num_rows:,} rows of {table.num_users:,} users, split by {parameters.kind}"
        raise DataError(what, "data.split", "take more rows, or the other split: user or row")
    return split


def _sides_by_user(table: Table, parameters: Parameters) -> UInt8s:
    # Modulo 2^64 like the arrays, which wrap around silently; a numpy scalar would warn.
    shift = np.uint64(parameters.seed * 0x9E3779B97F4A7C15 % 2**64)
    draws = _mix(table.users.name.astype(np.uint64) + shift)
    held = (parameters.test_share, parameters.test_share + parameters.validation_share)
    side = 2 - np.searchsorted(held, draws / 2.0**64, side="right").astype(np.uint8)
    return side[table.user]


def _sides_by_row(table: Table, parameters: Parameters) -> UInt8s:
    """A user with too few rows for a share holds nothing out."""
    offsets: Ints = table.offsets.astype(np.int64)
    lengths: Ints = offsets[1:] - offsets[:-1]
    tests = (lengths * parameters.test_share).astype(np.int64)
    tested = offsets[1:] - tests
    validated = tested - (lengths * parameters.validation_share).astype(np.int64)
    sides = np.empty(table.num_rows, np.uint8)
    for begin in range(0, table.num_rows, _PIECE):
        rows = table.order[begin : begin + _PIECE]
        user, place = table.user[rows], np.arange(begin, begin + len(rows))
        sides[rows] = (place >= validated[user]).astype(np.uint8) + (place >= tested[user])
    return sides


def _rows_of(sides: UInt8s, side: int) -> UInt32s:
    pieces = range(0, len(sides), _PIECE)
    found = [(begin + np.flatnonzero(sides[begin : begin + _PIECE] == side)).astype(np.uint32) for begin in pieces]
    return np.concatenate(found)


def _mix(values: UInt64s) -> UInt64s:
    """The finalizer of splitmix64: a 64-bit number of which each bit depends on all of the given one's."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
