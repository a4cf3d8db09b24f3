"""The loss: of all texts of the step, which one was spoken; and of all speeches, which one is this text's.

    contrast(rows_N2D, log_scale) -> (sum of losses, N)

Each pair's loss is the mean of both ways. Scores are cosines times a scale, which is learned as its logarithm and never above 100. Pairs
with the same words are negatives of each other like any other two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

HIGHEST = math.log(100.0)
"""of the scale's logarithm: a temperature of 0.01"""


def contrast(rows_N2D: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Rows hold a pair each: its speech and its text, both of length 1."""
    speech_ND, text_ND = rows_N2D.unbind(1)
    scores_NN = log_scale.exp() * (speech_ND @ text_ND.T)
    right_N = torch.arange(len(scores_NN), device=scores_NN.device)
    loss = (
        cross_entropy(scores_NN, right_N, reduction="sum") + cross_entropy(scores_NN.T, right_N, reduction="sum")
    ) / 2
    return loss, torch.tensor(float(len(scores_NN)), device=scores_NN.device)


class Ceiling(torch.autograd.Function):
    """The smaller of a number and HIGHEST; the gradient passes unless it would push the number further above it.

    With torch's clamp a number that is above stays there: it has no gradient any more.
    """

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        context.save_for_backward(value)
        return value.clamp(max=HIGHEST)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (value,), (gradient,) = context.saved_tensors, gradients
        return torch.where((value < HIGHEST) | (gradient > 0), gradient, 0)


def cap(log_scale: Tensor) -> Tensor:
    found: Tensor = Ceiling.apply(log_scale)  # type: ignore[no-untyped-call]
    return found
