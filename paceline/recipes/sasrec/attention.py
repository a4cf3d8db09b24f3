"""Causal attention: each position looks at itself and at what came before it.

Padding stands at the end, after everything real, so the causal mask hides it too. Shapes: B rows, L positions, H heads, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from paceline.engine.attend import KERNELS
from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.frame import Frame
from paceline.recipes.sasrec.rotary import rotate


class CausalAttention(nn.Module):
    """Attention by one of three kernels: eager, sdpa or flex."""

    def __init__(self, config: Model, kernel: str) -> None:
        super().__init__()
        self._heads = config.heads
        self._kernel = KERNELS[kernel]
        self._dropout = config.attention_dropout
        self.project_in = nn.Linear(config.width, 3 * config.width)
        self.project_out = nn.Linear(config.width, config.width)

    def forward(self, hidden_TD: Tensor, frame: Frame) -> Tensor:
        query, key, value = split_heads(frame.pad(self.project_in(hidden_TD)), self._heads)
        if frame.rotation is not None:
            query, key = rotate(query, frame.rotation), rotate(key, frame.rotation)
        dropout = self._dropout if self.training else 0.0
        mixed_BHLD = self._kernel(query, key, value, is_causal=True, dropout=dropout)
        projected: Tensor = self.project_out(frame.pack(join_heads(mixed_BHLD)))
        return projected


def split_heads(projected_BLD: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B, H, L, D) each."""
    rows, length, _ = projected_BLD.shape
    query, key, value = projected_BLD.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    return query, key, value


def join_heads(mixed_BHLD: Tensor) -> Tensor:
    return mixed_BHLD.transpose(1, 2).flatten(2)
