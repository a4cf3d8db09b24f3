"""Where candidates come from: the towers' best of the whole catalogue, exactly; and what is popular, for whoever has no history.

TowersSource(Batcher(TowerIndex(model, categories, num_items).find), count=1000)
PopularSource(stock.popular, count=250)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.recipes.tenrec.contexts import to_tensor
from paceline.recipes.tenrec.top_k import find_best
from paceline.recipes.tenrec.towers import Towers
from paceline.serving.batcher import Batcher
from paceline.serving.candidates import Candidates, by_rank
from paceline.serving.query import Query
from paceline.serving.tenrec.contexts import build_contexts

_AT_ONCE = 65_536
"""items whose vectors are computed together"""


class TowerIndex:
    """The vectors of all items, computed once; users' are computed when they ask."""

    def __init__(self, model: Towers, categories: NDArray[np.uint16], count: int) -> None:
        self._model, self._categories, self._count = model.eval(), categories, count
        with torch.inference_mode():
            self._items_ND = torch.cat([self._embed(first) for first in range(1, len(categories), _AT_ONCE)])

    def find(self, queries: Sequence[Query]) -> list[Candidates]:
        """The best `count` items for each, in one product."""
        with torch.inference_mode():
            users_BD = self._model.embed_users(build_contexts(queries, self._categories))
            positions, _ = find_best(users_BD, self._items_ND, self._count)
        return [Candidates.build(items + 1) for items in positions.numpy()]  # position 0 of the vectors is item 1

    def _embed(self, first: int) -> Tensor:
        kinds = to_tensor(self._categories[first : first + _AT_ONCE])
        return self._model.embed_items(torch.arange(first, first + len(kinds)), kinds)


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
