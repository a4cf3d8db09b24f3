"""A transformer block: attention, then SwiGLU, each behind an RMSNorm and inside a residual connection."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.nsa.attention import DenseAttention, SparseAttention
from paceline.recipes.nsa.cache import DenseCache
from paceline.recipes.nsa.moment import Moment
from paceline.recipes.nsa.pattern import Frame
from paceline.recipes.nsa.stages import Cache as SparseCache

Cache = SparseCache | DenseCache


class Block(nn.Module):
    def __init__(self, attention: SparseAttention | DenseAttention, width: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = attention
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.feed_forward = SwiGlu(width, hidden)

    def forward(
        self, hidden_BTW: Tensor, frame: Frame, cache: Cache | None = None, given: Tensor | None = None
    ) -> Tensor:
        """`given`: of the sparse attention the selected blocks, of the dense one the mask."""
        hidden_BTW = hidden_BTW + self.attention(self.attention_norm(hidden_BTW), frame, cache, given)
        return hidden_BTW + self.feed_forward(self.feed_forward_norm(hidden_BTW))  # type: ignore[no-any-return]

    def decode(self, hidden_B1W: Tensor, moment: Moment, cache: Cache) -> Tensor:
        """One more token per row."""
        attended = self.attention.decode(self.attention_norm(hidden_B1W), moment, cache)  # type: ignore[arg-type]
        hidden_B1W = hidden_B1W + attended
        return hidden_B1W + self.feed_forward(self.feed_forward_norm(hidden_B1W))  # type: ignore[no-any-return]


class SwiGlu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        # Two products rather than the halves of one: halves are no whole rows, and all that reads or writes them is slower for it.
        self.gate = nn.Linear(width, hidden, bias=False)
        self.expand = nn.Linear(width, hidden, bias=False)
        self.contract = nn.Linear(hidden, width, bias=False)

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        contracted: Tensor = self.contract(F.silu(self.gate(hidden_BTW)) * self.expand(hidden_BTW))
        return contracted


def swiglu_width(width: int) -> int:
    """8/3 of the width, up to a multiple of 64: three products cost what two of 4 × the width would.

    width 768   2,048
    """
    return -(-8 * width // (3 * 64)) * 64


def start_weights(module: nn.Module, layers: int) -> None:
    """Normal with 0.02; what is added to the residual stream smaller, by how often that happens."""
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        else:
            is_last = name.endswith(("project_out.weight", "feed_forward.contract.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if is_last else 0.02)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "gates.project" in name:
                parameter.zero_()
