"""What the towers minimise: of all that is there, which item did this user click; corrected for how likely each was to be there.

    row = pack(users_BD, items_BD, items_B, log_q_B)        what a sample brings to the loss of the whole step
    in_batch_losses(rows, temperature)                      against the clicked items of the step's other samples
    sampled_losses(users_BD, vectors_ND, …)                 against items that were drawn for the step

A softmax over what happened to be there learns to avoid what is there often. Taking off each negative's score the logarithm of how often it
was to be expected there (log-Q: the draws times its chance in each) makes the sum that of the whole catalogue. The clicked item is there for
certain: nothing is taken off its score, and where it is there a second time it is no negative.

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
    scores_BB = users_BD @ vectors_BD.T / temperature
    is_own_BB = places_B[:, None] == places_B
    negatives_BB = scores_BB - log_q_B1.T - math.log(max(1, len(rows) - 1))
    negatives_BB = negatives_BB.masked_fill(items_B[:, None] == items_B, -math.inf)
    return F.cross_entropy(torch.where(is_own_BB, scores_BB, negatives_BB), places_B, reduction="none")


def sampled_losses(
    users_BD: Tensor, vectors_ND: Tensor, items_N: Tensor, log_q_N: Tensor, temperature: float
) -> Tensor:
    """(B,) where the first B of the items are the clicked ones, and the rest was drawn for all of them."""
    count = len(users_BD)
    scores_BN = users_BD @ vectors_ND.T / temperature
    places_B, all_N = (torch.arange(each, device=users_BD.device) for each in (count, len(items_N)))
    # What others of this micro-batch clicked is not among what was drawn: another cut of the step would have other ones.
    is_negative_BN = (all_N >= count) & (items_N != items_N[:count, None])
    negatives_BN = scores_BN - log_q_N - math.log(max(1, len(items_N) - count))
    negatives_BN = negatives_BN.masked_fill(~is_negative_BN, -math.inf)
    return F.cross_entropy(torch.where(places_B[:, None] == all_N, scores_BN, negatives_BN), places_B, reduction="none")
