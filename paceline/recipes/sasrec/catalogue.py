"""Hidden states against every item of the catalogue: cross-entropy to train with, ranks to evaluate, the best items to recommend.

The score of an item is the product of its embedding with the hidden state, in fp32 whatever the autocast (on a GPU by TF32 products,
unless precision.tf32=false): half precision would round scores into ties. Never more scores exist at once than the budget in `parts`.

A rank is the number of other items that are not strictly below the answer: 0 is best. Ties and NaN count against the answer, so a
constant or broken model scores 0, never 1.

    rank_among_all(hidden_BD, weights_ND, answers_B)          tensor([0, 4, 12])

Shapes: T, B rows, C rows of a part, D width, S seen items, K best items. weights_ND has one row per item 1 … N and row 0 for padding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.recipes.sasrec.parts import Gradients, split_rows, sum_parts


def cross_entropy(hidden_TD: Tensor, weights_ND: Tensor, targets_T: Tensor) -> Tensor:
    """The sum of -log softmax of each row's target over the whole catalogue; rows with target 0 do not count."""

    def part(hidden_CD: Tensor, weights_ND: Tensor, rows: slice, gradients: Gradients | None) -> Tensor:
        items_ND = weights_ND[1:]
        targets_C1 = targets_T[rows, None]
        is_target_C1 = targets_C1 > 0
        columns_C1 = (targets_C1 - 1).clamp(min=0)
        scores_CN = hidden_CD @ items_ND.T
        answers_C1 = scores_CN.gather(1, columns_C1)
        highest_C1 = scores_CN.amax(1, keepdim=True)
        # In place from here on: a second tensor of this size is what costs most, in time as in memory.
        masses_CN = scores_CN.sub_(highest_C1).exp_()
        total_C1 = masses_CN.sum(1, keepdim=True)
        losses_C1 = (highest_C1 - answers_C1 + total_C1.log()).masked_fill(~is_target_C1, 0)
        if gradients is not None:
            grad_hidden_CD, grad_weights_ND = gradients
            # softmax - onehot = (masses - total · onehot) / total; the narrow factors carry the division and the mask.
            masses_CN.scatter_(1, columns_C1, masses_CN.gather(1, columns_C1) - total_C1)
            share_C1 = is_target_C1 / total_C1
            torch.mm(masses_CN, items_ND, out=grad_hidden_CD).mul_(share_C1)
            grad_weights_ND[1:].addmm_(masses_CN.T, hidden_CD * share_C1)
        return losses_C1[:, 0]

    return sum_parts(part, hidden_TD, weights_ND, weights_ND.shape[0])


@torch.no_grad()
def rank_among_all(hidden_BD: Tensor, weights_ND: Tensor, answers_B: Tensor, seen_BS: Tensor | None = None) -> Tensor:
    """The rank of each row's answer among all items but the seen ones (0: none); N, which no cut-off reaches, for a seen answer.

    Rows are cut, never the catalogue: the answer's score comes from the same product as its rivals', so that equal items tie.
    """
    num_items = weights_ND.shape[0] - 1
    ranks_B = torch.empty_like(answers_B)
    for rows in split_rows(len(answers_B), num_items + 1, hidden_BD.device):
        answers_C1 = answers_B[rows, None]
        scores_CN = _score_all(hidden_BD[rows], weights_ND)
        below_CN = scores_CN < scores_CN.gather(1, answers_C1)
        below_CN[:, 0] = True
        if seen_BS is None:
            ranks_B[rows] = num_items - below_CN.sum(1)
        else:
            below_CN.scatter_(1, seen_BS[rows], True)
            is_seen_C = (seen_BS[rows] == answers_C1).any(1)
            ranks_B[rows] = (num_items - below_CN.sum(1)).masked_fill(is_seen_C, num_items)
    return ranks_B


@torch.no_grad()
def rank_among(hidden_BD: Tensor, weights_ND: Tensor, answers_B: Tensor, candidates_BC: Tensor) -> Tensor:
    """The rank of each row's answer among its candidates, to which it does not itself belong.

    A candidate that is none (0) counts as above the answer: who has none to be ranked among must not look perfect.
    """
    ranks_B = torch.empty_like(answers_B)
    row_elements = (1 + candidates_BC.shape[1]) * weights_ND.shape[1]
    for rows in split_rows(len(answers_B), row_elements, hidden_BD.device):
        items = torch.cat((answers_B[rows, None], candidates_BC[rows]), dim=1)
        # Products and sums one by one: the precision of matrix products may be reduced, and gains nothing here.
        scores = (weights_ND[items] * hidden_BD[rows, None].to(weights_ND.dtype)).sum(-1)
        not_below = ~(scores[:, 1:] < scores[:, :1])
        ranks_B[rows] = (not_below | (items[:, 1:] == 0)).sum(1)
    return ranks_B


@torch.no_grad()
def top_items(hidden_BD: Tensor, weights_ND: Tensor, k: int, exclude_BS: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores and items (B, K) of the best `k` items, the best first, without the excluded ones; item 0 where fewer are left."""
    k = min(k, weights_ND.shape[0] - 1)
    best = []
    for rows in split_rows(len(hidden_BD), weights_ND.shape[0], hidden_BD.device):
        scores_CN = _score_all(hidden_BD[rows], weights_ND)
        scores_CN[:, 0] = -math.inf
        if exclude_BS is not None:
            scores_CN.scatter_(1, exclude_BS[rows], -math.inf)
        best.append(scores_CN.topk(k))
    scores_BK = torch.cat([part.values for part in best])
    items_BK = torch.cat([part.indices for part in best])
    return scores_BK, items_BK.masked_fill(scores_BK == -math.inf, 0)


def _score_all(hidden_CD: Tensor, weights_ND: Tensor) -> Tensor:
    with torch.autocast(hidden_CD.device.type, enabled=False):
        return hidden_CD.to(weights_ND.dtype) @ weights_ND.T
