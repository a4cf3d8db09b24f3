"""SASRec: causal self-attention over a user's items; the score of an item is the product of its embedding with the hidden state.

Shapes: B rows, L positions, D width, H heads, T asked positions, N items, C candidates. Items are 1 … N, 0 is padding at the end.
Positions count from the start of the window, so that what a prefix says does not depend on what follows it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.interactions import PADDING


class Sasrec(nn.Module):
    """Item and position embeddings, pre-norm blocks, a last norm, and scores against the shared item embedding."""

    def __init__(self, num_items: int, max_length: int, config: Model, attention: str) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(num_items + 1, config.width, padding_idx=PADDING)
        self.position_embedding = nn.Embedding(max_length, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.blocks))
        self.final_norm = nn.LayerNorm(config.width)
        self._scale = math.sqrt(config.width)
        self.apply(_initialise)

    def forward(self, items_BL: Tensor, positions_T: Tensor, candidates_TC: Tensor | None = None) -> Tensor:
        """Scores in fp32 at the asked positions of the flattened (B · L): of all items (T, N), or of the candidates (T, C).

        Column n of all items is item n + 1. Everything happens in here, so that a data-parallel wrapper sees every use of every parameter.
        """
        hidden_BLD = self.item_embedding(items_BL) * self._scale + self.position_embedding.weight[: items_BL.shape[1]]
        hidden_BLD = self.dropout(hidden_BLD)
        for block in self.blocks:
            hidden_BLD = block(hidden_BLD)
        hidden_TD = self.final_norm(hidden_BLD.flatten(0, 1).index_select(0, positions_T))
        # Half precision would round scores into ties, and overflow in fp16: the last product is not autocast.
        with torch.autocast(hidden_TD.device.type, enabled=False):
            hidden_TD = hidden_TD.float()
            if candidates_TC is None:
                return F.linear(hidden_TD, self.item_embedding.weight[1:])
            embedded_TCD = F.embedding(candidates_TC, self.item_embedding.weight)
            return torch.einsum("td,tcd->tc", hidden_TD, embedded_TCD)


class Block(nn.Module):
    """Attention, then a feed-forward layer, each on the normed state and added to it."""

    def __init__(self, config: Model, attention: str) -> None:
        super().__init__()
        feed_forward = config.feed_forward or 4 * config.width
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = CausalAttention(config.width, config.heads, attention)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, feed_forward)
        self.contract = nn.Linear(feed_forward, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        hidden_BLD = hidden_BLD + self.dropout(self.attention(self.attention_norm(hidden_BLD)))
        branch_BLD = self.contract(F.gelu(self.expand(self.feed_forward_norm(hidden_BLD))))
        mixed: Tensor = hidden_BLD + self.dropout(branch_BLD)
        return mixed


class CausalAttention(nn.Module):
    """Each position looks at itself and at what came before it; padding at the end is after everything real, so nothing else is masked."""

    def __init__(self, width: int, heads: int, kernel: str) -> None:
        super().__init__()
        self._heads = heads
        self._kernel = kernel
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        query, key, value = self.project_in(hidden_BLD).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        if self._kernel == "sdpa":
            mixed_BHLD = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed_BHLD = _attend(query, key, value)
        return self.project_out(mixed_BHLD.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention written out, softmax in fp32."""
    length = query.shape[-2]
    scores = (query @ key.transpose(-2, -1)).float() / math.sqrt(query.shape[-1])
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1).to(value.dtype) @ value


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
