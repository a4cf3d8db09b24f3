"""The table of impressions: who was shown which item, what came of it, and what the user had before; columns that all ranks map.

    table.user[r], table.item[r]         row r: user 0 … num_users - 1 was shown item 1 … num_items
    table.actions[r] & 1                 clicked; the bits are those of ACTIONS
    table.history[r]                     ten item numbers, hist_1 first, 0 where there is none
    table.rows_of(user)                  the rows of a user, in the order of the source

Of gender, age and category the number is the recorded one plus 1, and 0 where the source says nothing (`\\N`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.recipes.tenrec.columns import ACTIONS

UInt8s = npt.NDArray[np.uint8]
UInt16s = npt.NDArray[np.uint16]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NONE = 0
"""The item number that is none."""


@dataclass(frozen=True, eq=False)
class Users:
    """What is known of each user, at its number."""

    gender: UInt8s
    age: UInt8s
    name: Ints
    """the id in the source"""


@dataclass(frozen=True, eq=False)
class Items:
    """What is known of each item, at its number; at 0 stands none."""

    category: UInt16s
    name: Ints
    """the id in the source"""
    exposures: Ints
    """over all rows; of the training rows alone: `Split.item_counts`"""
    clicks: Ints


@dataclass(frozen=True, eq=False)
class Table:
    user: UInt32s
    item: UInt32s
    actions: UInt8s
    watching: UInt16s
    """watching_times, at most 65,535"""
    history: UInt32s
    """(rows, 10)"""
    users: Users
    items: Items
    offsets: UInt64s
    """(users + 1): where in `order` the rows of each user begin"""
    order: UInt32s
    """the rows, one user after the other, each user's in the order of the source"""
    identity: str
    """of the content, not of its place: the same for the same rows"""

    @property
    def num_rows(self) -> int:
        return len(self.user)

    @property
    def num_users(self) -> int:
        return len(self.users.name)

    @property
    def num_items(self) -> int:
        return len(self.items.name) - 1

    def rows_of(self, user: int) -> UInt32s:
        return self.order[int(self.offsets[user]) : int(self.offsets[user + 1])]

    def labels(self, rows: npt.NDArray[np.integer]) -> UInt8s:
        """(n, 4) of 0 and 1: each action as it was recorded."""
        bits: UInt8s = self.actions[rows][:, None] >> np.arange(len(ACTIONS), dtype=np.uint8)
        return bits & np.uint8(1)


def group_rows(user: npt.NDArray[np.integer], num_users: int) -> tuple[UInt64s, UInt32s]:
    """`offsets` and `order` of rows in any order."""
    counts = np.bincount(user, minlength=num_users)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.uint64)
    if np.all(user[:-1] <= user[1:]):
        return offsets, np.arange(len(user), dtype=np.uint32)
    return offsets, np.argsort(user, kind="stable").astype(np.uint32)
