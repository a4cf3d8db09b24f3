# mypy: ignore-errors
"""Tiles of rows of a tensor, read and written, in Triton: what the GPU kernels of attention share.

They alone import this file, and only where Triton is. mypy knows nothing of Triton's language.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_tile(base_ptr, row, stride, mask, D: tl.constexpr):
    """Rows of width D; zeros where the mask has none."""
    d = tl.arange(0, D)
    return tl.load(base_ptr + row[:, None].to(tl.int64) * stride + d[None, :], mask=mask[:, None], other=0.0)


@triton.jit
def store_tile(base_ptr, row, stride, mask, value, D: tl.constexpr):
    d = tl.arange(0, D)
    pointer = base_ptr + row[:, None].to(tl.int64) * stride + d[None, :]
    tl.store(pointer, value.to(base_ptr.dtype.element_ty), mask=mask[:, None])
