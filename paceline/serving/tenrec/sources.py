"""Where candidates come from: the towers' best of the whole catalogue, exactly; and what is popular, for whoever has no history.

TowersSource(Batcher(TowerIndex(model, table, 800).find))
PopularSource(stock.popular, 200)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.recipes.tenrec.catalogue import Catalogue
from paceline.recipes.tenrec.table import Table
from paceline.recipes.tenrec.towers import Towers
from paceline.serving.batcher import Batcher
from paceline.serving.candidates import Candidates, by_rank
from paceline.serving.query import Query
from paceline.serving.tenrec.contexts import build_contexts


class TowerIndex:
    """The vectors of all items, computed once; users' are computed when they ask."""

    def __init__(self, model: Towers, table: Table, count: int) -> None:
        self._model, self._categories, self._count = model.eval(), np.asarray(table.items.category), count
        with torch.no_grad():
            self._items_ND = Catalogue(table).embed(model)

    def find(self, queries: Sequence[Query]) -> list[Candidates]:
        """The best `count` items for each, in one product."""
        with torch.no_grad():
            users_BD = self._model.embed_users(build_contexts(queries, self._categories))
            found = Catalogue.find(users_BD, self._items_ND, self._count)
        return [Candidates.build(items) for items in found.numpy()]


class TowersSource:
    """Asks the index, together with whatever other requests are there at the time."""

    name: ClassVar[str] = "towers"

    def __init__(self, batcher: Batcher[Query, Candidates], timeout_s: float | None = 0.2) -> None:
        self._batcher, self.timeout_s = batcher, timeout_s

    def fetch(self, query: Query) -> Candidates:
        return self._batcher.ask(query, self.timeout_s)


class PopularSource:
    """The same for everybody; `share` of the score that another source's candidate of the same rank has."""

    name: ClassVar[str] = "popular"

    def __init__(
        self, popular: NDArray[np.int64], count: int, share: float = 1.0, timeout_s: float | None = None
    ) -> None:
        items = popular[:count]
        self._found = Candidates.build(items, by_rank(len(items)) * share)
        self.timeout_s = timeout_s

    def fetch(self, query: Query) -> Candidates:
        return self._found
