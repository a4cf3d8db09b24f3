"""The ranking model: for a user with a history, what would come of showing each of some candidates.

    logits_BCO = model(batch)          the four actions of ACTIONS, then LIST: how well it fits beside the others of the list

The context is one entry for the user's attributes and one for each item of the history; a candidate is an item without a place. They go
through the same layers together, whose mixers keep candidates apart: a score depends on the context and the candidate alone, see isolation.py.

Shapes: B samples, S entries of the context, C candidates, L = S + C, D width, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.tenrec.columns import ACTIONS, HISTORY
from paceline.recipes.tenrec.config import Model
from paceline.recipes.tenrec.embedding import ItemEmbedding, Sizes, UserEmbedding, build_embedding
from paceline.recipes.tenrec.isolation import product
from paceline.recipes.tenrec.mixers import Attention, Fastformer
from paceline.recipes.tenrec.table import NONE

CLICK_HEAD = ACTIONS.index("click")
LIST = len(ACTIONS)
"""The output, after those of the actions, that orders candidates: what the softmax over a list is taken of."""


class Ranker(nn.Module):
    """Contexts and candidates in, a row of logits per candidate out."""

    def __init__(self, sizes: Sizes, config: Model) -> None:
        super().__init__()
        width = config.width
        self.items = ItemEmbedding(sizes, width, config.hash_rows)
        self.users = UserEmbedding(sizes, width)
        self.place_embedding = build_embedding(HISTORY, width)
        """of the history's items; a candidate has no place"""
        self.candidate_embedding = nn.Parameter(torch.zeros(width))
        """what tells a candidate from the same item in the history"""
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.heads = nn.Linear(width, len(ACTIONS) + 1)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(B, C, O) logits in fp32."""
        history_BS, candidates_BC = batch["history"], batch["candidates"]
        categories = torch.cat((batch["history_categories"], batch["categories"]), 1)
        # One lookup: an item that stands in many places has one row of gradient.
        items_BLD = self.items(torch.cat((history_BS, candidates_BC), 1), categories)
        past_BSD, candidates_BCD = items_BLD.split((history_BS.shape[1], candidates_BC.shape[1]), 1)
        user_B1D = self.users(batch["genders"], batch["ages"])[:, None]
        states = torch.cat(
            (user_B1D, past_BSD + self.place_embedding.weight, candidates_BCD + self.candidate_embedding), 1
        )
        states_BLD = self.dropout(states)
        bias_B11S = hide_none(history_BS)
        for block in self.blocks:
            states_BLD = block(states_BLD, bias_B11S)
        # A product like those of isolation.py: with five columns a row's digits would depend on its place.
        candidates_BCD = self.norm(states_BLD[:, bias_B11S.shape[-1] :])
        logits_BCO = product(candidates_BCD, self.heads.weight.T) + self.heads.bias
        return logits_BCO.float()


class Block(nn.Module):
    """One layer: entries are mixed, then each is transformed by itself; both beside a residual connection."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        width = config.width
        self._heads = config.heads
        self._adds_query = config.mixer == "fastformer"
        self.mixer = Fastformer(config.heads, width // config.heads) if self._adds_query else Attention()
        self.mixer_norm = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, config.hidden_width)
        self.contract = nn.Linear(config.hidden_width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states_BLD: Tensor, bias_B11S: Tensor) -> Tensor:
        states_BLD = states_BLD + self.dropout(self._mix(self.mixer_norm(states_BLD), bias_B11S))
        hidden = F.gelu(self.expand(self.feed_forward_norm(states_BLD)))
        transformed: Tensor = states_BLD + self.dropout(self.contract(hidden))
        return transformed

    def _mix(self, entries_BLD: Tensor, bias_B11S: Tensor) -> Tensor:
        rows, length, _ = entries_BLD.shape
        projected = self.project_in(entries_BLD).view(rows, length, 3, self._heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = self.mixer(query, key, value, bias_B11S.shape[-1], bias_B11S)
        mixed_BLD: Tensor = self.project_out(_join(mixed))
        return mixed_BLD + _join(query) if self._adds_query else mixed_BLD


def hide_none(history_BS: Tensor) -> Tensor:
    """(B, 1, 1, 1 + S): added to scores, hides places of the history without an item; the user's own entry is always seen."""
    is_hidden = F.pad(history_BS == NONE, (1, 0))[:, None, None]
    return torch.zeros_like(is_hidden, dtype=torch.float32).masked_fill_(is_hidden, -math.inf)


def _join(mixed_BHLD: Tensor) -> Tensor:
    return mixed_BHLD.transpose(1, 2).flatten(2)
