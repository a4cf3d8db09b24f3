"""A transformer block: attention, then a feed-forward layer, each inside a residual connection."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.sasrec.attention import CausalAttention
from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.frame import Frame
from paceline.recipes.sasrec.hyper import HyperResidual
from paceline.recipes.sasrec.norm import Norm
from paceline.recipes.sasrec.time_attention import TimeAttention


class Block(nn.Module):
    """The state is (T, D), or with mHC (T, n, D) in n streams; only the residual connections know."""

    def __init__(self, config: Model, kernel: str, number: int) -> None:
        super().__init__()
        self.attention = TimeAttention(config) if config.time else CausalAttention(config, kernel)
        self.feed_forward = FeedForward(config)
        self.attention_residual = _build_residual(config, 2 * number)
        self.feed_forward_residual = _build_residual(config, 2 * number + 1)

    def forward(self, state: Tensor, frame: Frame) -> Tensor:
        state = self.attention_residual(state, lambda hidden_TD: self.attention(hidden_TD, frame))
        return self.feed_forward_residual(state, self.feed_forward)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """x + layer(norm(x)), or with post-norm norm(x + layer(x))."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self._norm_first = config.norm == "pre"
        self.norm = Norm(config.width, keeps_fp32=config.norm == "post")
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_TD: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        if self._norm_first:
            return hidden_TD + self.dropout(layer(self.norm(hidden_TD)))  # type: ignore[no-any-return]
        return self.norm(hidden_TD + self.dropout(layer(hidden_TD)))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two products with an activation between; swiglu has a third one, whose result gates the first."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        hidden = hidden_width(config)
        self._activation = config.activation
        self.expand = nn.Linear(config.width, 2 * hidden if config.activation == "swiglu" else hidden)
        self.contract = nn.Linear(hidden, config.width)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        expanded: Tensor = self.expand(hidden_TD)
        if self._activation == "swiglu":
            gate, passed = expanded.chunk(2, dim=-1)
            expanded = F.silu(gate) * passed
        else:
            expanded = F.gelu(expanded) if self._activation == "gelu" else torch.relu(expanded)
        contracted: Tensor = self.contract(expanded)
        return contracted


def hidden_width(config: Model) -> int:
    """model.feed_forward, or 4 × width; swiglu gets two thirds of the latter, up to a multiple of 8, to cost the same with three products.

    width 64   gelu, relu 256   swiglu 176
    """
    if config.feed_forward is not None:
        return config.feed_forward
    if config.activation == "swiglu":
        return -(-8 * config.width // (3 * 8)) * 8
    return 4 * config.width


def _build_residual(config: Model, number: int) -> nn.Module:
    return HyperResidual(config, number) if config.mhc else Residual(config)
