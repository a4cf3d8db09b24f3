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


@triton.jit(do_not_specialize=["count"])
def nsa_products_kernel(out_ptr, grad_ptr, total_ptr, count, D: tl.constexpr, ROWS: tl.constexpr):
    """Of each row, the sum of what out and grad are multiplied."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out, grad = load_tile(out_ptr, row, D, row < count, D), load_tile(grad_ptr, row, D, row < count, D)
    tl.store(total_ptr + row, tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1), mask=row < count)
