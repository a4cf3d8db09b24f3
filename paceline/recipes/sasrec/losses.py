"""What is minimised: softmax over the catalogue or over sampled items, or a yes or no for the answer and each sampled item.

A loss has no parameters. It is called with hidden states, the item embeddings, targets (0: none), and what negatives come from:

    loss = build_loss(config.loss, num_items, frequencies)
    loss(hidden_TD, weights_ND, targets_T, keys_T, negatives_K)      summed over the targets, in the weights' precision

Sampled items that happen to be the answer do not count against it. Shapes: T positions, C positions of a part, K negatives, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.sasrec.catalogue import cross_entropy
from paceline.recipes.sasrec.config import Loss
from paceline.recipes.sasrec.negatives import draw_by, draw_uniform
from paceline.recipes.sasrec.sampled import sum_with_own, sum_with_shared


def build_loss(config: Loss, num_items: int, frequencies: Tensor | None) -> nn.Module:
    """`frequencies` (N,) float64: how likely a negative is each item; None: each but the answer alike."""
    if config.kind == "ce":
        return FullSoftmax()
    if config.kind == "sampled_softmax":
        return SampledSoftmax(config, num_items, frequencies)
    return BinaryCrossEntropy(config, num_items, frequencies)


class FullSoftmax(nn.Module):
    """-log softmax of the answer over the whole catalogue."""

    def forward(
        self, hidden_TD: Tensor, weights_ND: Tensor, targets_T: Tensor, keys_T: None = None, negatives_K: None = None
    ) -> Tensor:
        return cross_entropy(hidden_TD, weights_ND, targets_T)


class SampledLoss(nn.Module):
    """What losses on sampled items share: where those come from, and which of them do not count."""

    cumulative_N: Tensor | None

    def __init__(self, config: Loss, num_items: int, frequencies: Tensor | None) -> None:
        super().__init__()
        self._num_items = num_items
        self._count = config.count
        self._is_shared = config.is_shared
        # Summed on the host: on CUDA the order of a running sum is not fixed, and every device is to draw the same.
        cumulative_N = None if frequencies is None else frequencies.double().cpu().cumsum(0)
        self.register_buffer("cumulative_N", cumulative_N, persistent=False)

    def forward(
        self,
        hidden_TD: Tensor,
        weights_ND: Tensor,
        targets_T: Tensor,
        keys_T: Tensor | None = None,
        negatives_K: Tensor | None = None,
    ) -> Tensor:
        if self._is_shared:
            assert negatives_K is not None
            return sum_with_shared(self._settle, hidden_TD, weights_ND, targets_T, negatives_K)
        assert keys_T is not None
        return sum_with_own(self._settle, self._draw, self._count, hidden_TD, weights_ND, targets_T, keys_T)

    def judge_(self, positive_C: Tensor, negative_KC: Tensor, negatives: Tensor) -> Tensor:
        """Losses (C,); the scores become slopes, in place. A negative of score -inf is to cost nothing."""
        raise NotImplementedError

    def _draw(self, keys_C: Tensor, answers_C: Tensor) -> Tensor:
        if self.cumulative_N is None:
            return draw_uniform(keys_C, self._count, self._num_items, answers_C)
        return draw_by(keys_C, self._count, self.cumulative_N)

    def _settle(self, positive_C: Tensor, negative_KC: Tensor, negatives: Tensor, answers_C: Tensor) -> Tensor:
        negative_KC.masked_fill_(negatives == answers_C, -math.inf)
        losses_C = self.judge_(positive_C, negative_KC, negatives)
        is_none_C = answers_C == 0
        positive_C.masked_fill_(is_none_C, 0)
        negative_KC.masked_fill_(is_none_C, 0)
        return losses_C.masked_fill_(is_none_C, 0)


class SampledSoftmax(SampledLoss):
    """-log softmax of the answer over itself and the sampled items, each weighted for how it was drawn.

    A negative j of K, drawn with probability q_j, stands for 1 / (K · q_j) items: the expectation of
    exp(s₊) + Σ_k exp(s_k) / (K · q_k) is the full softmax's denominator, exp(s₊) + Σ_{j≠₊} exp(s_j).
    So log(K · q) is taken from each negative's score, and nothing from the answer's, which is always there.
    Items of frequency 0 are never drawn: then the denominator is that over the drawable ones and the answer.
    """

    log_frequencies_N: Tensor

    def __init__(self, config: Loss, num_items: int, frequencies: Tensor | None) -> None:
        super().__init__(config, num_items, frequencies)
        if frequencies is None:
            frequencies = torch.full((num_items,), 1 / (num_items - 1), dtype=torch.float64)
        log_frequencies_N = F.pad(frequencies.double().log(), (1, 0)).float()
        self.register_buffer("log_frequencies_N", log_frequencies_N, persistent=False)

    def judge_(self, positive_C: Tensor, negative_KC: Tensor, negatives: Tensor) -> Tensor:
        negative_KC.sub_(self.log_frequencies_N[negatives]).sub_(math.log(negatives.shape[0]))
        total_C = torch.logaddexp(positive_C, negative_KC.logsumexp(0))
        losses_C = total_C - positive_C
        # The slopes are the softmax, less 1 for the answer.
        torch.expm1(-losses_C, out=positive_C)
        negative_KC.sub_(total_C).exp_()
        return losses_C


class BinaryCrossEntropy(SampledLoss):
    """-log σ(s₊)^β - Σ_k log(1 - σ(s_k)): the answer yes, each sampled item no.

    β is 1 for bce. gbce (gSASRec, arXiv 2308.07192) makes up for the few items that are told no: with α = K / (N - 1), the share that
    is sampled, β = α · (t · (1 - 1/α) + 1/α) = 1 - t · (1 - α), from plain bce at t = `calibration` = 0 to probabilities at 1. α takes
    negatives to be drawn evenly, as the paper does.
    """

    def __init__(self, config: Loss, num_items: int, frequencies: Tensor | None) -> None:
        super().__init__(config, num_items, frequencies)
        sampled_share = min(1.0, self._count / (num_items - 1))
        self._power = 1 - config.calibration * (1 - sampled_share) if config.kind == "gbce" else 1.0

    def judge_(self, positive_C: Tensor, negative_KC: Tensor, negatives: Tensor) -> Tensor:
        positive_C.neg_()
        losses_C = F.softplus(positive_C).mul_(self._power).add_(F.softplus(negative_KC).sum(0))
        positive_C.sigmoid_().mul_(-self._power)
        negative_KC.sigmoid_()
        return losses_C
