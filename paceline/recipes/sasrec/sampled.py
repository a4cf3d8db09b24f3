"""A loss on the answer and some sampled items of each position, instead of on the whole catalogue: its products and its gradients.

With negatives of its own, a position gathers their embeddings, a part of all positions at a time; shared ones are one matrix product.
What scores cost is not decided here: `Settle` does that, and gives the slopes along with the losses.

The weights' gradient is summed by index_add_. On CUDA that is atomic and fast, and has a fixed order under
torch.use_deterministic_algorithms; on a CPU it takes half as long as the backward of an embedding (measured 2026-11-15).

Shapes: T positions, C positions of a part, K negatives, D width. weights_ND has one row per item and row 0 for padding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.recipes.sasrec.parts import Gradients, sum_parts

DrawNegatives = Callable[[Tensor, Tensor], Tensor]
"""(keys_C, answers_C) -> negatives (C, K)"""
Settle = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(scores of the answers (C,), scores of the negatives (K, C), negatives (K, C) or (K, 1), answers_C) -> losses_C.

In place, both scores become the loss's slopes by them: at the sizes of this file a copy is what costs.
"""


def sum_with_own(
    settle: Settle,
    draw: DrawNegatives,
    count: int,
    hidden_TD: Tensor,
    weights_ND: Tensor,
    targets_T: Tensor,
    keys_T: Tensor,
) -> Tensor:
    """The summed loss where each position draws `count` negatives from its own key."""

    def part(hidden_CD: Tensor, weights_ND: Tensor, rows: slice, gradients: Gradients | None) -> Tensor:
        answers_C = targets_T[rows]
        # The answer is candidate 0. Positions last: the hidden states then repeat as whole blocks, which is faster.
        candidates = torch.cat((answers_C[None], draw(keys_T[rows], answers_C).T))
        flat = candidates.flatten()
        embedded = weights_ND.index_select(0, flat).view(*candidates.shape, -1)
        products = embedded * hidden_CD
        scores = products.sum(-1)
        losses_C = settle(scores[0], scores[1:], candidates[1:], answers_C)
        if gradients is not None:
            grad_hidden_CD, grad_weights_ND = gradients
            slopes = scores[:, :, None]
            torch.sum(torch.mul(embedded, slopes, out=products), 0, out=grad_hidden_CD)
            torch.mul(hidden_CD, slopes, out=products)
            grad_weights_ND.index_add_(0, flat, products.flatten(0, 1))
        return losses_C

    return sum_parts(part, hidden_TD, weights_ND, (1 + count) * weights_ND.shape[1])


def sum_with_shared(
    settle: Settle, hidden_TD: Tensor, weights_ND: Tensor, targets_T: Tensor, negatives_K: Tensor
) -> Tensor:
    """The summed loss where all positions have the same negatives."""

    def part(hidden_CD: Tensor, weights_ND: Tensor, rows: slice, gradients: Gradients | None) -> Tensor:
        answers_C = targets_T[rows]
        answers_CD, shared_KD = weights_ND.index_select(0, answers_C), weights_ND.index_select(0, negatives_K)
        positive_C = (answers_CD * hidden_CD).sum(-1)
        negative_KC = shared_KD @ hidden_CD.T
        losses_C = settle(positive_C, negative_KC, negatives_K[:, None], answers_C)
        if gradients is not None:
            grad_hidden_CD, grad_weights_ND = gradients
            torch.mm(negative_KC.T, shared_KD, out=grad_hidden_CD).addcmul_(answers_CD, positive_C[:, None])
            grad_weights_ND.index_add_(0, answers_C, hidden_CD * positive_C[:, None])
            grad_weights_ND.index_add_(0, negatives_K, negative_KC @ hidden_CD)
        return losses_C

    return sum_parts(part, hidden_TD, weights_ND, max(negatives_K.shape[0], weights_ND.shape[1]))
