"""What the launchers of all GPU kernels of attention share: tensors as tiles that the GPU copies by itself, how it multiplies, and one sum.

kernel[grid](*describe((q, 64), (k, 64)), LOG2_E / math.sqrt(D), PRECISION=precision_of(q.dtype))
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

LOG2_E = math.log2(math.e)
"""in the scale of scores: kernels take exponentials in base 2"""
MOST_ROWS = 65_535
"""rows × heads of one launch: what a GPU takes as a grid's second dimension, or its third. No kernel has anything else there that grows as large."""
_PRODUCTS = 64
"""rows of one program that sums products"""


def describe(*tiled: tuple[Tensor, int]) -> Iterator[Any]:
    """Each (B, T, H, D) as (B · T, H · D), and the tokens of a tile of one head: the GPU copies such tiles by itself."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    for states, rows in tiled:
        yield TensorDescriptor.from_tensor(states.flatten(2).flatten(0, 1), [rows, states.shape[3]])


def precision_of(dtype: torch.dtype) -> str:
    """How the tensor cores multiply: fp32 as it is, not rounded to 10 bits."""
    return "ieee" if dtype == torch.float32 else "tf32"


def sum_products(out: Tensor, grad: Tensor) -> Tensor:
    """Σ out · grad over the width, (B, T, H), in fp32: what softmax takes off every score's gradient."""
    from paceline.recipes.nsa.kernels.tile_kernels import nsa_products_kernel

    B, T, H, D = out.shape
    total = out.new_empty((B, T, H), dtype=torch.float32)
    nsa_products_kernel[(-(-T * H // _PRODUCTS), B)](out, grad, total, T, H=H, D=D, ROWS=_PRODUCTS)
    return total
