"""Dense numbers for the ids of a source, in the order in which they first occur.

users = Numbering(first=0)
users.number(ids)      [7, 3, 7, 9] -> [0, 1, 0, 2]
"""

from __future__ import annotations

import numpy as np

from paceline.recipes.tenrec.rules import MOST_ID
from paceline.recipes.tenrec.table import Ints


class Numbering:
    """Memory is four bytes for each id up to the largest, and eight for each that occurs. Where numbers begin at 1, id 0 is none: number 0."""

    def __init__(self, first: int, limit: int | None = None) -> None:
        self._first = first
        self._limit = limit
        self._next = first
        self._numbers = np.full(1 << 16, -1, np.int32)
        self._numbers[:first] = np.arange(first)
        self._names: list[Ints] = []

    @property
    def count(self) -> int:
        return self._next - self._first

    def number(self, ids: Ints) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Of each id, new ones counted on; -1 where the limit was reached before. Ids lie in 0 … MOST_ID."""
        self._reach(int(ids.max(initial=0)))
        numbers = self._numbers[ids]
        unknown = ids[numbers < 0]
        if len(unknown) and (self._limit is None or self.count < self._limit):
            self._take(unknown)
            numbers = self._numbers[ids]
        return numbers

    def names(self) -> Ints:
        """The id of each number, from the first on."""
        return np.concatenate([np.empty(0, np.int64), *self._names])

    def _reach(self, largest: int) -> None:
        if largest >= len(self._numbers):
            longer = np.full(min(max(largest + 1, 2 * len(self._numbers)), MOST_ID + 1), -1, np.int32)
            longer[: len(self._numbers)] = self._numbers
            self._numbers = longer

    def _take(self, unknown: Ints) -> None:
        found, places = np.unique(unknown, return_index=True)
        new = found[np.argsort(places)]
        if self._limit is not None:
            new = new[: self._limit - self.count]
        self._numbers[new] = np.arange(self._next, self._next + len(new), dtype=np.int32)
        self._names.append(new.astype(np.int64))
        self._next += len(new)
