"""What the towers minimise: of all that is there, which item did this user click; corrected for how likely each was to be there.

    row = pack(users_BD, items_BD, items_B, log_q_B)        what a sample brings to the loss of the whole step
    in_batch_losses(rows, temperature)                      against the clicked items of the step's other samples
    sampled_losses(users_BD, positives_BD, …)               against items that were drawn for the step

A softmax over what happened to be there learns to avoid what is there often. Taking the logarithm of how likely each item was to be there
(log-Q) off its score makes it the softmax over the whole catalogue that was to be learned. The clicked item itself is no negative.

Shapes: B samples, N items, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_LOW_BITS = 12
"""An item's number travels in two floats, which hold whole numbers of 24 bits each."""
_EXTRA = 3


def pack(users_BD: Tensor, vectors_BD: Tensor, items_B: Tensor, log_q_B: Tensor) -> Tensor:
    """(B, 2 D + 3) in fp32."""
    numbers = torch.stack((items_B >> _LOW_BITS, items_B & ((1 << _LOW_BITS) - 1)), 1)
    return torch.cat((users_BD.float(), vectors_BD.float(), log_q_B.float()[:, None], numbers.float()), 1)


def in_batch_losses(rows: Tensor, temperature: float) -> Tensor:
    """(B,) for all packed rows of a step."""
    width = (rows.shape[1] - _EXTRA) // 2
    users_BD, vectors_BD, log_q_B1, numbers_B2 = torch.split(rows, [width, width, 1, 2], 1)
    own = numbers_B2.detach().long()
    items_B = own[:, 0] << _LOW_BITS | own[:, 1]
    places_B = torch.arange(len(rows), device=rows.device)
    scores_BB = users_BD @ vectors_BD.T / temperature - log_q_B1.T
    is_same_BB = (items_B[:, None] == items_B) & (places_B[:, None] != places_B)
    return F.cross_entropy(scores_BB.masked_fill(is_same_BB, -math.inf), places_B, reduction="none")


def sampled_losses(
    users_BD: Tensor, vectors_ND: Tensor, items_N: Tensor, log_q_N: Tensor, temperature: float
) -> Tensor:
    """(B,) where the first B of the items are the clicked ones, and the rest was drawn for all of them."""
    count = len(users_BD)
    scores_BN = users_BD @ vectors_ND.T / temperature - log_q_N
    places_B = torch.arange(count, device=users_BD.device)
    is_own_BN = places_B[:, None] == torch.arange(len(items_N), device=users_BD.device)
    # What others of this micro-batch clicked is not among what was drawn: another cut of the step would have other ones.
    is_drawn_N = torch.arange(len(items_N), device=users_BD.device) >= count
    is_right_BN = is_own_BN | (is_drawn_N & (items_N != items_N[:count, None]))
    return F.cross_entropy(scores_BN.masked_fill(~is_right_BN, -math.inf), places_B, reduction="none")
