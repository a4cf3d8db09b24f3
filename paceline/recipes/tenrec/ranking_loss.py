"""What the ranker minimises: of each list, what came of its recorded rows, and which candidate was the clicked one.

    losses_B = ranking_losses(logits_BCO, batch, loss, mean_weight)

The actions' part is the log loss of all four at the recorded rows, weighted as lists.py says: what an impression leads to, calibrated. The
list's part is a softmax, with smoothed targets, over the clicked item and the sampled ones, which are drawn evenly: which item of all it is.
Recorded negatives are no part of that: they were shown, as the sampled ones were not, and would teach that what is shown is not clicked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.recipes.tenrec.columns import ACTIONS
from paceline.recipes.tenrec.config import Loss
from paceline.recipes.tenrec.ranker import LIST
from paceline.recipes.tenrec.side import CLICK


def ranking_losses(logits_BCO: Tensor, batch: Mapping[str, Tensor], loss: Loss, mean_weight: float) -> Tensor:
    """(B,) in fp32."""
    places_B, actions_B, weights_BC = batch["places"], batch["actions"], batch["weights"]
    is_positive_BC = torch.arange(weights_BC.shape[1], device=places_B.device) == places_B[:, None]
    labels_BC4 = is_positive_BC[..., None] * split_actions(actions_B)[:, None]
    of_actions = F.binary_cross_entropy_with_logits(logits_BCO[..., :LIST], labels_BC4.float(), reduction="none")
    losses_B = (of_actions.sum(-1) * weights_BC).sum(1) / mean_weight
    if loss.list_weight:
        is_recorded_BC = (weights_BC > 0) & ~is_positive_BC
        of_lists = list_losses(logits_BCO[..., LIST], is_positive_BC, ~is_recorded_BC, loss.smoothing)
        losses_B = losses_B + loss.list_weight * of_lists * (actions_B & CLICK)
    return losses_B


def list_losses(scores_BC: Tensor, is_positive_BC: Tensor, is_listed_BC: Tensor, smoothing: float) -> Tensor:
    """(B,) the cross-entropy of the softmax over what is listed, whose target is the positive and, for a share, all of them alike."""
    logs_BC = scores_BC.masked_fill(~is_listed_BC, -math.inf).log_softmax(1).masked_fill(~is_listed_BC, 0.0)
    of_positive = (logs_BC * is_positive_BC).sum(1)
    of_all = logs_BC.sum(1) / is_listed_BC.sum(1)
    return -((1 - smoothing) * of_positive + smoothing * of_all)


def split_actions(actions: Tensor) -> Tensor:
    """(…, 4) of 0 and 1."""
    return actions[..., None] >> torch.arange(len(ACTIONS), device=actions.device) & 1
