"""What the kernels for Hopper, which are in Gluon, need of a GPU and of tensors: whether it has that, and boxes for its copy engine.

if has_hopper(device):
    kernel[grid](*describe_columns(64, q, k, v), …)
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


def describe_columns(rows: int, *states: Tensor) -> list[Any]:
    """Each (B, T, H, D) as (B · T, H · D), of which so many tokens of 64 numbers of a head are copied at a time."""
    return [describe_box(each.flatten(2).flatten(0, 1), [rows, 64]) for each in states]


def describe_box(states: Tensor, box: list[int]) -> Any:
    """As the matrix units want it in shared memory: numbers of 2 bytes, 64 of them wide."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=len(box))
    return TensorDescriptor.from_tensor(states, box, layout)


@cache
def has_hopper(device: torch.device) -> bool:
    """The GPU, and a Triton that knows the language of the kernels for it: that is no settled one yet."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        import_module("paceline.recipes.nsa.kernels.gather_gradient_kernels")
    except ImportError:
        return False
    return True
