"""The retrieval model: a user with a history and attributes, and an item with its category, as vectors of length 1, near where they fit.

    users_BD, items_ND = model(batch)
    model.embed_users(batch), model.embed_items(items, categories)

The two meet in their product alone, so that the vectors of a whole catalogue can be computed before anybody asks.

Shapes: B samples, S items of a history, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.tenrec.columns import HISTORY
from paceline.recipes.tenrec.config import Model
from paceline.recipes.tenrec.embedding import ItemEmbedding, Sizes, UserEmbedding, build_embedding
from paceline.recipes.tenrec.table import NONE


class Towers(nn.Module):
    """Both towers; they share the embedding of items."""

    def __init__(self, sizes: Sizes, config: Model) -> None:
        super().__init__()
        self.items = ItemEmbedding(sizes, config.width, config.hash_rows)
        self.users = UserEmbedding(sizes, config.width)
        self.place_embedding = build_embedding(HISTORY, config.width)
        self.attend = nn.Linear(config.width, 1)
        """how much an item of the history counts"""
        self.user_tower = Tower(config)
        self.item_tower = Tower(config)

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Vectors of the batch's users (B, D), and of its items (…, D), which need not be as many."""
        # One lookup: an item that stands in many places has one row of gradient.
        history_BS, items = batch["history"], batch["items"]
        ids = torch.cat((history_BS.flatten(), items.flatten()))
        categories = torch.cat((batch["history_categories"].flatten(), batch["categories"].flatten()))
        past, asked = self.items(ids, categories).split((history_BS.numel(), items.numel()))
        users_BD = self._embed_users(batch, past.view(*history_BS.shape, -1))
        items_ND: Tensor = self.item_tower(asked)
        return users_BD, items_ND.view(*items.shape, -1)

    def embed_users(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(B, D) in fp32."""
        return self._embed_users(batch, self.items(batch["history"], batch["history_categories"]))

    def embed_items(self, items: Tensor, categories: Tensor) -> Tensor:
        """(…, D) in fp32."""
        embedded: Tensor = self.item_tower(self.items(items, categories))
        return embedded

    def _embed_users(self, batch: Mapping[str, Tensor], past_BSD: Tensor) -> Tensor:
        past_BSD = past_BSD + self.place_embedding.weight
        # Who has no history has its mean of nothing: 0, and the attributes.
        is_none_BS1 = (batch["history"] == NONE)[..., None]
        scores_BS1 = self.attend(past_BSD).float().masked_fill(is_none_BS1, torch.finfo(torch.float32).min)
        weights_BS1 = scores_BS1.softmax(1).masked_fill(is_none_BS1, 0.0)
        user_BD = self.users(batch["genders"], batch["ages"]) + (weights_BS1 * past_BSD).sum(1)
        embedded: Tensor = self.user_tower(user_BD)
        return embedded


class Tower(nn.Module):
    """Residual feed-forward layers, and a projection to the vector that is compared."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.project = nn.Linear(config.width, config.width)

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = layer(states)
        return F.normalize(self.project(states).float(), dim=-1)


class Layer(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, config.hidden_width)
        self.contract = nn.Linear(config.hidden_width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: Tensor) -> Tensor:
        hidden = F.gelu(self.expand(self.norm(states)))
        return states + self.dropout(self.contract(hidden))  # type: ignore[no-any-return]
