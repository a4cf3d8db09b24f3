"""Sinkhorn-Knopp: a matrix of positive numbers becomes doubly stochastic, by normalising its columns and its rows in turn.

The result is  rows_i · exp(logit_ij) · columns_j  with a scale for each row and column. Only those change from round to round, so they
are all that the backward needs. Autograd, which goes back through the matrices of each round, took most of a training step on a CPU,
four times what this takes (2026-11-15).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_LOWEST = -30.0
"""logits further below the largest of their matrix count as this: no row or column can vanish, and be divided by a sum of 0"""


def sinkhorn(logits_Tnn: Tensor, iterations: int) -> Tensor:
    """exp, then `iterations` rounds of columns and rows, rows last: rows sum to 1 up to rounding, columns as nearly as the rounds bring it.

    Rows last, as each new stream is then exactly a weighted mean of the old ones.
    """
    # T last: sums then run over whole planes. With the n × n numbers together they run over n neighbours, which is slow on a CPU.
    logits_nnT = logits_Tnn.permute(1, 2, 0).contiguous()
    matrix_nnT = (logits_nnT - logits_nnT.detach().amax((0, 1))).clamp(min=_LOWEST).exp()
    balanced_nnT: Tensor = _Balance.apply(matrix_nnT, iterations)  # type: ignore[no-untyped-call]
    return balanced_nnT.permute(2, 0, 1)


class _Balance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix_nnT: Tensor, iterations: int) -> Tensor:
        rows_nT = torch.ones_like(matrix_nnT[0])
        columns_nT = rows_nT
        scales = [rows_nT]
        for _ in range(iterations):
            columns_nT = _sum_columns(matrix_nnT, rows_nT).reciprocal_()
            rows_nT = _sum_rows(matrix_nnT, columns_nT).reciprocal_()
            scales += [columns_nT, rows_nT]
        ctx.save_for_backward(matrix_nnT, *scales)
        return (matrix_nnT * rows_nT[:, None]).mul_(columns_nT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nnT: Tensor) -> tuple[Tensor, None]:
        """The rounds in reverse. A scale is 1 / sum, so the gradient of the sum is that of the scale times -scale²."""
        matrix_nnT, *scales = ctx.saved_tensors
        rows_nT, columns_nT = scales.pop(), scales.pop()
        through_nnT = grad_nnT * matrix_nnT
        grad_rows_nT = _sum_rows(through_nnT, columns_nT)
        grad_columns_nT = _sum_columns(through_nnT, rows_nT)
        grad_matrix_nnT = (grad_nnT * rows_nT[:, None]).mul_(columns_nT)
        while True:
            grad_sums_nT = grad_rows_nT.mul_(rows_nT).mul_(rows_nT).neg_()
            grad_matrix_nnT.addcmul_(grad_sums_nT[:, None], columns_nT[None])
            grad_columns_nT = grad_columns_nT.add_(_sum_columns(matrix_nnT, grad_sums_nT))
            rows_nT = scales.pop()
            grad_sums_nT = grad_columns_nT.mul_(columns_nT).mul_(columns_nT).neg_()
            grad_matrix_nnT.addcmul_(rows_nT[:, None], grad_sums_nT[None])
            if not scales:
                return grad_matrix_nnT, None
            grad_rows_nT = _sum_rows(matrix_nnT, grad_sums_nT)
            grad_columns_nT = torch.zeros_like(grad_sums_nT)
            columns_nT = scales.pop()


def _sum_columns(matrix_nnT: Tensor, weights_nT: Tensor) -> Tensor:
    """(n, T): of each column, with a weight for each row."""
    return (matrix_nnT * weights_nT[:, None]).sum(0)


def _sum_rows(matrix_nnT: Tensor, weights_nT: Tensor) -> Tensor:
    """(n, T): of each row, with a weight for each column."""
    return (matrix_nnT * weights_nT).sum(1)
