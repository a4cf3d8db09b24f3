"""A whole catalogue as the towers see it: a vector per item, computed part by part, and the best of them for users.

catalogue = Catalogue(table)
vectors_ND = catalogue.embed(towers)            item 1 is at position 0
catalogue.find(users_BD, vectors_ND, 100)       (B, 100) items, best first
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.recipes.tenrec.contexts import to_tensor
from paceline.recipes.tenrec.table import Table
from paceline.recipes.tenrec.top_k import find_best, rank_in_catalogue
from paceline.recipes.tenrec.towers import Towers

_AT_ONCE = 1 << 16
"""items whose vectors are computed together"""


class Catalogue:
    def __init__(self, table: Table) -> None:
        self._categories = to_tensor(table.items.category[1:])

    def embed(self, towers: Towers) -> Tensor:
        """(items, D), where the model is."""
        device = next(towers.parameters()).device
        self._categories = self._categories.to(device)  # stays there: asked for in every block of an evaluation
        items = torch.arange(1, len(self._categories) + 1, device=device)
        parts = zip(torch.split(items, _AT_ONCE), torch.split(self._categories, _AT_ONCE), strict=True)
        return torch.cat([towers.embed_items(ids, categories) for ids, categories in parts])

    @staticmethod
    def find(users_BD: Tensor, vectors_ND: Tensor, count: int) -> Tensor:
        return 1 + find_best(users_BD, vectors_ND, count)[0]

    @staticmethod
    def rank(users_BD: Tensor, vectors_ND: Tensor, answers_B: Tensor) -> Tensor:
        """(B,) how many other items are not below each answer."""
        return rank_in_catalogue(users_BD, vectors_ND, answers_B - 1)
