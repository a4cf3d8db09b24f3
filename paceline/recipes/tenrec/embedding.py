"""Users, items and their attributes as vectors, for both models: what is looked up by number, before anything is computed.

    ItemEmbedding(sizes, width, hash_rows)(items, categories)   ->   (…, width)

Items are rows of a table with sparse gradients; categories, genders and ages are few.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from paceline.engine.rows import RowTable

_DEVIATION = 0.02


@dataclass(frozen=True)
class Sizes:
    """How many numbers there are of each kind, from 0, which is none."""

    items: int
    categories: int
    genders: int
    ages: int


class ItemEmbedding(nn.Module):
    """An item is its own row and that of its category."""

    def __init__(self, sizes: Sizes, width: int, hash_rows: int | None) -> None:
        super().__init__()
        self.item_embedding = RowTable(sizes.items, width, hash_rows)
        self.category_embedding = build_embedding(sizes.categories, width)

    def forward(self, items: Tensor, categories: Tensor) -> Tensor:
        embedded: Tensor = self.item_embedding(items) + self.category_embedding(categories)
        return embedded


class UserEmbedding(nn.Module):
    """Of a user the attributes alone: who was not there in training has them, too."""

    def __init__(self, sizes: Sizes, width: int) -> None:
        super().__init__()
        self.gender_embedding = build_embedding(sizes.genders, width)
        self.age_embedding = build_embedding(sizes.ages, width)

    def forward(self, genders_B: Tensor, ages_B: Tensor) -> Tensor:
        embedded: Tensor = self.gender_embedding(genders_B) + self.age_embedding(ages_B)
        return embedded


def build_embedding(rows: int, width: int) -> nn.Embedding:
    embedding = nn.Embedding(rows, width)
    nn.init.normal_(embedding.weight, std=_DEVIATION)
    return embedding
