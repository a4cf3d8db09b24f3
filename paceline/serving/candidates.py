"""The candidates of one request as columns of equal length: what every stage after the sources works on, all rows at once.

    found = Candidates.build(items, score=scores)
    found = found.having(category=categories[found.item])
    found.take(keep)                       # by a mask, or by row numbers
    join([first, second])

`item` and `score` are always there. Any other column may be absent: whoever would use it does nothing then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

MOST_ITEMS = 1 << 32


@dataclass(frozen=True)
class Candidates:
    """Rows of columns; a column may be wider than one number. Columns that stages of ours know, besides item and score:

    source    which of the sources brought it
    category  a number
    author    a number
    age_s     since it appeared
    words     numbers of words, padded with 0
    actions   the probability of each action
    """

    columns: Mapping[str, Array]

    def __post_init__(self) -> None:
        assert "item" in self.columns
        assert "score" in self.columns
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")

    @classmethod
    def build(cls, item: ArrayLike, score: ArrayLike | None = None, **columns: ArrayLike) -> Candidates:
        """From anything that numpy takes; without scores they are in falling order: 1, 1/2, 1/3, …"""
        items = np.asarray(item, np.int64)
        if items.ndim != 1 or (items.size and not 0 <= int(items.min()) <= int(items.max()) < MOST_ITEMS):
            raise ValueError("items are one row of numbers from 0 to below 2**32")
        scores = by_rank(len(items)) if score is None else np.asarray(score, np.float32)
        others: dict[str, Array] = {name: np.asarray(column) for name, column in columns.items()}
        return cls({"item": items, "score": scores, **others})

    def __len__(self) -> int:
        return len(self.columns["item"])

    @property
    def item(self) -> Ints:
        return self.columns["item"]

    @property
    def score(self) -> Floats:
        return self.columns["score"]

    def get(self, name: str) -> Array | None:
        """A column; None where there is none."""
        return self.columns.get(name)

    def having(self, **columns: Array) -> Candidates:
        """The same rows with more columns, or others in their place."""
        return Candidates({**self.columns, **columns})

    def take(self, rows: NDArray[np.bool_] | Ints) -> Candidates:
        """Those rows only, as a mask or by their numbers."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Candidates({name: column.take(numbers, axis=0) for name, column in self.columns.items()})


def by_rank(count: int) -> Floats:
    """Scores that only say in which order they stand, comparable between sources whose own scores are not."""
    return (1 / np.arange(1, count + 1)).astype(np.float32)


def join(parts: Sequence[Candidates]) -> Candidates:
    """The rows of all, in this order; columns that not all of them have are left out, narrower ones filled up with 0."""
    if not parts:
        return Candidates.build(())
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    stacked = {name: _stack([part.columns[name] for part in parts]) for name in names}
    return Candidates({name: column for name, column in stacked.items() if column is not None})


def _stack(columns: Sequence[Array]) -> Array | None:
    """None where they have nothing in common but the name: single numbers, and rows of them."""
    if len({column.shape[1:] for column in columns}) == 1:
        return np.concatenate(columns)
    if any(column.ndim != 2 for column in columns):
        return None
    widest = max(column.shape[1] for column in columns)
    return np.concatenate([np.pad(column, ((0, 0), (0, widest - column.shape[1]))) for column in columns])
