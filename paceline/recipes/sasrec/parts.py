"""A loss summed over many rows, some rows at once and together with its gradients: memory is bounded, nothing is computed twice.

A part gives the losses of its rows and, where gradients are wanted, its share of them; the backward only scales. How many rows make
a part follows from shapes and the kind of device alone: neither free memory nor data changes digits, and a CUDA graph can hold it all.

Shapes: T rows, C rows of a part, D width. weights_ND has one row per item and row 0 for padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_ELEMENTS = 2**26
"""of the largest tensor of a part: 256 MiB in fp32"""
CACHED_ELEMENTS = 2**20
"""the same on a CPU, where what leaves the cache costs more than the arithmetic (measured 2026-11-15: 1.6 × for 3,416 items)"""
_MIN_CACHED_ROWS = 64
"""on a CPU, so that one pass over the weights of a large catalogue serves enough rows"""

Gradients = tuple[Tensor, Tensor]
"""that of the part's hidden states (C, D), to be written, and that of the weights (N, D), to be added to"""
Part = Callable[[Tensor, Tensor, slice, Gradients | None], Tensor]
"""(hidden_CD, weights_ND, which rows, gradients if they are wanted) -> losses_C"""


def split_rows(num_rows: int, row_elements: int, device: torch.device) -> Iterator[slice]:
    """Slices of at most as many rows as the budget allows, one at least, when each needs `row_elements`."""
    at_once = MAX_ELEMENTS // row_elements
    if device.type == "cpu":
        at_once = min(at_once, max(CACHED_ELEMENTS // row_elements, _MIN_CACHED_ROWS))
    at_once = max(at_once, 1)
    return (slice(start, min(start + at_once, num_rows)) for start in range(0, num_rows, at_once))


def sum_parts(part: Part, hidden_TD: Tensor, weights_ND: Tensor, row_elements: int) -> Tensor:
    """The sum of all rows' losses, in the weights' precision whatever the autocast; differentiable by hidden states and weights."""
    if not torch.is_grad_enabled():
        hidden_TD, weights_ND = hidden_TD.detach(), weights_ND.detach()
    total: Tensor = _PartwiseSum.apply(hidden_TD, weights_ND, part, row_elements)  # type: ignore[no-untyped-call]
    return total


class _PartwiseSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weights_ND: Tensor, part: Part, row_elements: int) -> Tensor:
        losses_T = weights_ND.new_empty(hidden_TD.shape[0])
        grad_hidden_TD = grad_weights_ND = None
        if any(ctx.needs_input_grad):
            grad_hidden_TD = torch.empty_like(hidden_TD, dtype=weights_ND.dtype)
            grad_weights_ND = torch.zeros_like(weights_ND)
        with torch.autocast(hidden_TD.device.type, enabled=False):
            for rows in split_rows(len(losses_T), row_elements, hidden_TD.device):
                gradients = None
                if grad_hidden_TD is not None and grad_weights_ND is not None:
                    gradients = grad_hidden_TD[rows], grad_weights_ND
                losses_T[rows] = part(hidden_TD[rows].to(weights_ND.dtype), weights_ND, rows, gradients)
        ctx.save_for_backward(grad_hidden_TD, grad_weights_ND)
        return losses_T.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden_TD, grad_weights_ND = ctx.saved_tensors
        # Autograd rounds to the hidden states' precision after this product, which may hold the factor that saves fp16 from underflow.
        return grad_hidden_TD * grad_total, grad_weights_ND * grad_total, None, None
