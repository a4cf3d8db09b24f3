"""Which selection blocks a query looks at: the forced ones, then those that its compressed attention gives the most weight.

With the blocks counted from 1, as the paper does (its equation 9), a selection block j has the score

    p'[j] = Σ_{m=0}^{l'/d - 1} Σ_{n=0}^{l/d - 1} p[(l'/d) j - m - n]

summed over the heads of a group, where p[i] is the probability of compressed block i among those that the query may see. It says: each
stride of d tokens inside block j counts every compressed block that covers it. So p[i] comes in as often as the blocks i and j share
strides, and that is the weight in `overlap_weights`, here with both counted from 0:

    l = 32, d = 16, l' = 64     p'[j] = p[4j - 1] + 2 p[4j] + 2 p[4j + 1] + 2 p[4j + 2] + p[4j + 3]

Shapes: B rows, G groups, Q queries, N slots, J selection blocks of a document, n selected.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.recipes.nsa.pattern import Pattern


def overlap_weights(num_compressed: int, num_selection: int, pattern: Pattern, device: torch.device) -> Tensor:
    """(N, J) in fp32: how many strides compressed block i and selection block j share."""
    per_block, per_selection = pattern.block // pattern.stride, pattern.selection_block // pattern.stride
    first_N1 = torch.arange(num_compressed, device=device)[:, None]
    first_J = torch.arange(num_selection, device=device) * per_selection
    shared_NJ = torch.minimum(first_N1 + per_block, first_J + per_selection) - torch.maximum(first_N1, first_J)
    return shared_NJ.clamp(min=0).float()


def score_blocks(weights_BGQN: Tensor, first_BQ: Tensor, num_selection: int, pattern: Pattern) -> Tensor:
    """(B, G, Q, J): from the probability of each slot, summed over a group's heads. Slots a query does not see have probability 0."""
    num_slots = weights_BGQN.shape[-1]
    device = weights_BGQN.device
    # Slots count through the row; from here on blocks count from the start of the query's document.
    slots_BQN = first_BQ[..., None] + torch.arange(num_slots, device=device)
    of_document = weights_BGQN.gather(3, slots_BQN.clamp(max=num_slots - 1)[:, None].expand_as(weights_BGQN))
    of_document = of_document.masked_fill((slots_BQN >= num_slots)[:, None], 0.0)
    overlap_NJ = overlap_weights(num_slots, num_selection, pattern, device).to(weights_BGQN.dtype)
    # Autocast would round the scores to bf16, in which many blocks are equal that are not.
    with torch.autocast(device.type, enabled=False):
        scores_BGQJ: Tensor = of_document @ overlap_NJ
    return scores_BGQJ


def choose_blocks(scores_BGQJ: Tensor, positions_BQ: Tensor, pattern: Pattern) -> Tensor:
    """(B, Q, G, n): numbers of the selected blocks in the query's document, rising; behind them -1 where there are fewer than n.

    Forced blocks come first, then the highest scores; of equal scores the lower number.
    """
    num_selection = scores_BGQJ.shape[-1]
    number_J = torch.arange(num_selection, device=scores_BGQJ.device)
    own_BQ1 = (positions_BQ // pattern.selection_block)[..., None]
    is_forced_BQJ = (number_J < pattern.initial) | (number_J > own_BQ1 - pattern.local)
    ranked = scores_BGQJ.masked_fill(is_forced_BQJ[:, None], math.inf)
    ranked = ranked.masked_fill_((number_J > own_BQ1)[:, None], -math.inf)
    order = ranked.sort(dim=-1, descending=True, stable=True).indices[..., : min(pattern.selected, num_selection)]
    # Whatever begins after the query goes behind all others, and is none.
    order = order.masked_fill(order > own_BQ1[:, None], num_selection).sort(dim=-1).values
    blocks = order.masked_fill_(order == num_selection, -1).transpose(1, 2)
    return F.pad(blocks, (0, pattern.selected - blocks.shape[-1]), value=-1).contiguous()
