"""The branches mixed by their gates, on the GPU: one pass over what they found, and one over its gradients.

mixed_BTHD = mix(gates_BTH3, compressed_BTHD, selected_BTHD, window_BTHD)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

_ROWS = 64
"""heads of tokens that one program mixes"""


def mix(gates_BTH3: Tensor, compressed_BTHD: Tensor, selected_BTHD: Tensor, window_BTHD: Tensor) -> Tensor:
    """In the type of the branches; sums in fp32."""
    given = (gates_BTH3, compressed_BTHD, selected_BTHD, window_BTHD)
    mixed: Tensor = _mix(*(each.contiguous() for each in given))
    return mixed


@custom_op("paceline_nsa::mix", mutates_args=())
def _mix(gates: Tensor, compressed: Tensor, selected: Tensor, window: Tensor) -> Tensor:
    from paceline.recipes.nsa.kernels.mix_kernels import nsa_mix_kernel

    mixed = torch.empty_like(compressed)
    count, width = gates.numel() // 3, mixed.shape[-1]
    nsa_mix_kernel[(-(-count // _ROWS),)](gates, compressed, selected, window, mixed, count, D=width, ROWS=_ROWS)
    return mixed


@_mix.register_fake
def _(gates: Tensor, compressed: Tensor, selected: Tensor, window: Tensor) -> Tensor:
    return torch.empty_like(compressed)


@custom_op("paceline_nsa::mix_gradient", mutates_args=())
def _mix_gradient(
    grad: Tensor, gates: Tensor, compressed: Tensor, selected: Tensor, window: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from paceline.recipes.nsa.kernels.mix_kernels import nsa_mix_gradient_kernel

    given = (gates, compressed, selected, window)
    grads = _new_gradients(grad, *given)
    count, width = gates.numel() // 3, grad.shape[-1]
    nsa_mix_gradient_kernel[(-(-count // _ROWS),)](*given, grad, *grads, count, D=width, ROWS=_ROWS)
    return grads


def _new_gradients(
    grad: Tensor, gates: Tensor, compressed: Tensor, selected: Tensor, window: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    branches = torch.empty_like(compressed), torch.empty_like(selected), torch.empty_like(window)
    return torch.empty_like(gates), *branches


_mix_gradient.register_fake(_new_gradients)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> Any:
    return _mix_gradient(grad.contiguous(), *ctx.saved_tensors)


_mix.register_autograd(_backward, setup_context=_keep)
