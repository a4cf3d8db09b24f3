"""One side of a split as samples are drawn from it: the rows that something came of, and each user's other rows around them.

    side = build_side(split, "train", ANY)
    side.positives                     rows with an action that counts, ascending

Of each user the rows of a side stand beside each other in `table.order`: a split never takes every other one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.recipes.tenrec.split import SIDES, Split
from paceline.recipes.tenrec.table import Ints, Table, UInt32s

VERSION = 1
"""Raised whenever the same split gives another side."""
CLICK, ANY = 0b0001, 0b1111
"""which actions make a row a positive one"""
_PIECE = 1 << 22
"""rows looked at at a time, so that memory does not grow with the table"""

UInts = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Side:
    table: Table
    rows: UInt32s
    """all of the side, ascending"""
    positives: UInt32s
    begins: Ints
    """(users,) where in `table.order` the side's rows of each user begin"""
    lengths: UInts
    """(users,) and how many there are"""
    num_positives: UInts
    """(users,)"""
    num_negatives: UInts
    """(users,) without any action"""

    def negatives_per_positive(self, users: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """(n,) of users with positives: their rows without any action over their positive ones."""
        share: npt.NDArray[np.float32] = self.num_negatives[users] / self.num_positives[users].astype(np.float32)
        return share


def build_side(split: Split, name: str, actions: int) -> Side:
    table = split.table
    begins = table.offsets[:-1].astype(np.int64)
    for earlier in SIDES[: SIDES.index(name)]:
        begins += _count_users(table, split.rows(earlier))
    rows = split.rows(name)
    pieces = [rows[begin : begin + _PIECE] for begin in range(0, len(rows), _PIECE)]
    positives = [piece[table.actions[piece] & actions > 0] for piece in pieces]
    negatives = np.zeros(table.num_users, np.int64)
    for piece in pieces:
        negatives += _count_users(table, piece[table.actions[piece] == 0])
    found = np.concatenate([*positives, np.empty(0, np.uint32)])
    counts = (_count_users(table, rows), _count_users(table, found), negatives)
    return Side(table, rows, found, begins, *(count.astype(np.uint32) for count in counts))


def _count_users(table: Table, rows: UInt32s) -> Ints:
    counts = np.zeros(table.num_users, np.int64)
    for begin in range(0, len(rows), _PIECE):
        counts += np.bincount(table.user[rows[begin : begin + _PIECE]], minlength=table.num_users)
    return counts
