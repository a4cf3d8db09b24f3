# mypy: ignore-errors
"""Tiles of rows of a tensor, read, written and multiplied row by row, in Triton: what the GPU kernels of attention share.

Imported only where Triton is. mypy knows nothing of Triton's language.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_tile(base_ptr, row, stride, mask, D: tl.constexpr):
    """Rows of width D; zeros where the mask has none. Addresses are worked out in the type of `row`: who calls it knows whether 32 bits are enough."""
    d = tl.arange(0, D)
    return tl.load(base_ptr + (row[:, None] * stride + d[None, :]), mask=mask[:, None], other=0.0)


@triton.jit
def store_tile(base_ptr, row, stride, mask, value, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(base_ptr + (row[:, None] * stride + d[None, :]), value.to(base_ptr.dtype.element_ty), mask=mask[:, None])


@triton.jit(do_not_specialize=["T"])
def nsa_products_kernel(out_ptr, grad_ptr, total_ptr, T, H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Of each row of (B, T, H, D), the sum of what out and grad are multiplied, as (B, T, H)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < T * H
    base = tl.program_id(1).to(tl.int64) * T * H
    out, grad = load_tile(out_ptr + base * D, row, D, is_row, D), load_tile(grad_ptr + base * D, row, D, is_row, D)
    total = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(total_ptr + base + row, total, mask=is_row)
