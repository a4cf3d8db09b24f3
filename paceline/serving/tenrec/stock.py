"""What the table says about users and items, as serving asks for it: by name, at this moment, in the model's numbers.

    stock = Stock(table, clicks)
    user = stock.find_user("17")
    stock.history_of(user)          ten items, the latest first, 0 where there is none

Everything that was recorded counts here, held-out rows as well: who is served now has lived through all of it. Popularity alone is that of
the training rows, as the models know it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.recipes.tenrec.columns import HISTORY
from paceline.recipes.tenrec.table import NONE, Table
from paceline.serving.candidates import Candidates
from paceline.serving.query import Query
from paceline.serving.stages import Columns

Ints = NDArray[np.int64]

_INTEGER = re.compile(r"\s*[+-]?\d{1,30}\s*")


class Stock:
    """A table with its names turned around."""

    def __init__(self, table: Table, clicks: Ints) -> None:
        self.table = table
        self.categories: NDArray[np.uint16] = np.asarray(table.items.category)  # of a mapped file, too, a plain array
        order = np.lexsort((np.arange(len(clicks)), -clicks))
        self.popular: Ints = order[order != NONE]
        """all items, the most clicked first"""
        self._users = _Names(table.users.name, "user")
        self._items = _Names(table.items.name[1:], "item")

    def find_user(self, name: str) -> int:
        """UsageError where the data has no such user."""
        return self._users.find(name)

    def find_item(self, name: str, where: str) -> int:
        return self._items.find(name, where) + 1

    def find_category(self, name: int) -> int:
        """Category 0 is none; the recorded number is one less."""
        if not (self.categories == name + 1).any():
            some = ", ".join(str(known - 1) for known in np.unique(self.categories[self.categories > 0])[:3].tolist())
            what = f"there is no category {name} among those of this run's data"
            raise UsageError(
                what, "--block-category", f"use one of the data's own, such as {some or 'none: it has none'}"
            )
        return name + 1

    def name_of(self, item: int) -> str:
        return str(self.table.items.name[item])

    def history_of(self, user: int) -> Ints:
        """What the last row says, and that row's item where it was clicked."""
        rows = self.table.rows_of(user)
        if not len(rows):
            return np.zeros(HISTORY, np.int64)
        last = int(rows[-1])
        clicked = [int(self.table.item[last])] if self.table.actions[last] & 1 else []
        return np.array([*clicked, *self.table.history[last].tolist()][:HISTORY], np.int64)

    def seen_by(self, user: int) -> Ints:
        """Whatever the user was shown, or has in the history."""
        rows = self.table.rows_of(user)
        had = np.concatenate((self.table.item[rows], self.table.history[rows].ravel())).astype(np.int64)
        seen: Ints = np.unique(had[had != NONE])
        return seen

    def type_in(self, names: list[str]) -> Ints:
        """A history from the names of its items, oldest first, as the model takes it."""
        items = [self.find_item(name, "--history") for name in names][::-1][:HISTORY]
        return np.array(items + [NONE] * (HISTORY - len(items)), np.int64)


class Profile:
    """Hydrates a query of a user: history, attributes, what was seen."""

    name: ClassVar[str] = "profile"

    def __init__(self, stock: Stock, timeout_s: float | None = None) -> None:
        self._stock, self.timeout_s = stock, timeout_s

    def hydrate(self, query: Query) -> Mapping[str, Any]:
        if query.user is None:
            return {}
        users, user = self._stock.table.users, query.user
        attributes = {"gender": int(users.gender[user]), "age": int(users.age[user])}
        return {
            "history": self._stock.history_of(user),
            "seen": np.concatenate((query.seen, self._stock.seen_by(user))),
            "attributes": attributes,
        }


class ItemColumns:
    """Hydrates candidates: all that the data has of an item is its category."""

    name: ClassVar[str] = "category"

    def __init__(self, stock: Stock, timeout_s: float | None = None) -> None:
        self._categories, self.timeout_s = stock.categories, timeout_s

    def hydrate(self, query: Query, candidates: Candidates) -> Columns:
        return {"category": self._categories.take(candidates.item)}


class _Names:
    """Numbers by the ids of the source."""

    def __init__(self, names: Ints, kind: str) -> None:
        self._order = np.argsort(names, kind="stable")
        self._sorted = np.asarray(names)[self._order]
        self._kind = kind

    def find(self, name: str, where: str = "--user") -> int:
        # Digits of any script and one sign, as int() reads them; what lies beyond 64 bits is no id either.
        number = int(name) if _INTEGER.fullmatch(name) else None
        if number is not None and -(1 << 63) <= number < 1 << 63:
            place = int(np.searchsorted(self._sorted, number))
            if place < len(self._sorted) and self._sorted[place] == number:
                return int(self._order[place])
        some = ", ".join(str(known) for known in self._sorted[:3].tolist())
        what = f"there is no {self._kind} {name!r} among the {len(self._sorted):,} of this run's data"
        raise UsageError(what, where, f"use one of the data's own ids, such as {some}")
