"""From a row of frames or tokens to one vector, over those that are there and no others; masks of what is there.

Shapes: B rows, T places, W their width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mask_of(lengths_B: Tensor, num_places: int) -> Tensor:
    """(B, T) bool: the first so many places of each row."""
    return torch.arange(num_places, device=lengths_B.device) < lengths_B[:, None]


def attention_mask(mask_BT: Tensor, kernel: str, dtype: torch.dtype) -> Tensor:
    """(B, 1, T or 1, T) as the kernel takes it: boolean, or added to the scores; nobody looks at what is not there."""
    if kernel == "eager":
        return torch.zeros_like(mask_BT, dtype=dtype).masked_fill(~mask_BT, torch.finfo(dtype).min)[:, None, None]
    # SDPA wants a mask of its own for every query; this one is never written out.
    return mask_BT[:, None, None].expand(-1, -1, mask_BT.shape[1], -1)


class AttentionPooling(nn.Module):
    """A weighted mean of the places, with weights that the places themselves ask for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, places_BTW: Tensor, mask_BT: Tensor) -> Tensor:
        scores_BT = self.score(torch.tanh(self.hidden(places_BTW)))[..., 0].float()
        shares_BT = scores_BT.masked_fill(~mask_BT, -torch.inf).softmax(-1)
        return torch.einsum("bt,btw->bw", shares_BT.to(places_BTW.dtype), places_BTW)


def mean_of(places_BTW: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean of the places that are there."""
    weights_BT1 = mask_BT[..., None].to(places_BTW.dtype)
    return (places_BTW * weights_BT1).sum(1) / weights_BT1.sum(1)
