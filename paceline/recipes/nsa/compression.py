"""Blocks of keys or values, each made into one: the learned compression φ.

    φ(x) = mean(x) + contract(silu(expand(flatten(x + e))))          x, e: (l, D)

e tells the places inside the block apart. A block begins as its mean, so that compressed keys are worth comparing with before anything is
learned. All groups share φ; keys and values have one each. Keys come without RoPE: a turned mean of turned keys would forget its block.

Shapes: B rows, T tokens, N slots, l tokens of a block, G groups, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.nsa.pattern import Frame


class Compression(nn.Module):
    """φ for blocks of `block` tokens of heads `width` wide."""

    def __init__(self, block: int, width: int, hidden: int) -> None:
        super().__init__()
        self.block = block
        self.place_embedding = nn.Parameter(torch.empty(block, width))
        self.expand = nn.Linear(block * width, hidden)
        self.contract = nn.Linear(hidden, width, bias=False)
        nn.init.normal_(self.place_embedding, std=0.02)

    def forward(self, blocks_BNGlD: Tensor) -> Tensor:
        """(B, N, G, D)."""
        return self.join(blocks_BNGlD.flatten(-2), blocks_BNGlD.mean(-2))

    def join(self, flat_BNGf: Tensor, mean_BNGD: Tensor) -> Tensor:
        """The same from a block's tokens side by side, f = l · D, and their mean."""
        # expand(x + e) = expand(x) + W e: so nothing has to be added to every block, and x stays as exact as it came.
        with torch.autocast(flat_BNGf.device.type, enabled=False):
            shift = F.linear(self.place_embedding.flatten(), self.expand.weight, self.expand.bias)
        learned: Tensor = self.contract(F.silu(F.linear(flat_BNGf, self.expand.weight, shift)))
        return mean_BNGD.to(learned.dtype) + learned


def cut_blocks(states_BTGD: Tensor, frame: Frame, block: int) -> Tensor:
    """(B, N, G, l, D): the tokens of each slot's block; of an empty slot some tokens or other, which nobody sees."""
    rows, length = states_BTGD.shape[:2]
    inside_l = torch.arange(1 - block, 1, device=states_BTGD.device)
    index_BNl = (frame.ends_BN[..., None] + inside_l).clamp(0, length - 1)
    rows_B11 = torch.arange(rows, device=states_BTGD.device)[:, None, None]
    return states_BTGD[rows_B11, index_BNl].transpose(2, 3)


def compress(states_BTGD: Tensor, compression: Compression, frame: Frame) -> Tensor:
    """(B, N, G, D): one key or value per slot, not turned yet."""
    compressed: Tensor = compression(cut_blocks(states_BTGD, frame, compression.block))
    return compressed
