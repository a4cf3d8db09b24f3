"""Who asks for what: the request as it came, and what hydration added to it. Numbers are those of the data, not its names.

query = Query(top=10, user=17)
query.having(history=history, seen=history)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError

Ints = NDArray[np.int64]


def no_numbers() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Query:
    """One request. What is not known is empty or None, and the stage that would use it does nothing."""

    top: int
    """how many items are to be shown"""
    user: int | None = None
    """None: a history without a user"""
    attributes: Mapping[str, int] = field(default_factory=dict)
    """what is known about the user, such as gender and age group"""
    history: Ints = field(default_factory=no_numbers)
    """items, as the model takes them"""
    seen: Ints = field(default_factory=no_numbers)
    """items that the user has had already"""
    blocked_items: Ints = field(default_factory=no_numbers)
    blocked_authors: Ints = field(default_factory=no_numbers)
    blocked_categories: Ints = field(default_factory=no_numbers)
    muted_words: tuple[str, ...] = ()
    own_items: Ints = field(default_factory=no_numbers)
    own_author: int | None = None
    """the user as an author"""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UsageError(f"{self.top} items cannot be shown", "top", "ask for 1 or more")

    def having(self, **fields: Any) -> Query:
        return dataclasses.replace(self, **fields)
