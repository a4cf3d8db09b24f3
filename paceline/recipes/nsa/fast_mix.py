"""The branches mixed by their gates, on the GPU: one pass over what they found, and one over its gradients.

mixed_BTHD = mix(gates_BTH3, compressed_BTHD, selected_BTHD, window_BTHD)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_ROWS = 64
"""heads of tokens that one program mixes"""


def mix(gates_BTH3: Tensor, compressed_BTHD: Tensor, selected_BTHD: Tensor, window_BTHD: Tensor) -> Tensor:
    """In the type of the branches; sums in fp32."""
    mixed: Tensor = _Mix.apply(gates_BTH3, compressed_BTHD, selected_BTHD, window_BTHD)  # type: ignore[no-untyped-call]
    return mixed


class _Mix(Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        from paceline.recipes.nsa.mix_kernels import nsa_mix_kernel

        gates, compressed, selected, window = (each.contiguous() for each in given)
        mixed = torch.empty_like(compressed)
        count, width = gates.numel() // 3, mixed.shape[-1]
        nsa_mix_kernel[(-(-count // _ROWS),)](gates, compressed, selected, window, mixed, count, D=width, ROWS=_ROWS)
        ctx.save_for_backward(gates, compressed, selected, window)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        from paceline.recipes.nsa.mix_kernels import nsa_mix_gradient_kernel

        given = ctx.saved_tensors
        grads = [torch.empty_like(each) for each in given]
        count, width = given[0].numel() // 3, grad.shape[-1]
        nsa_mix_gradient_kernel[(-(-count // _ROWS),)](
            *given, grad.contiguous(), *grads, count, D=width, ROWS=_ROWS
        )  # fmt: skip
        return tuple(grads)
