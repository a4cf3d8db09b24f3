# mypy: ignore-errors
"""The GPU kernels that mix the branches by their gates, in Triton.

fast_mix.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

Rows of (B, T, H), as many as `count`: gates_BTH3; compressed, selected, window, mixed and their gradients (B, T, H, D).
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.kernels.tile_kernels import load_tile, store_tile


@triton.jit
def load_branch(gates_ptr, branch_ptr, row, is_row, BRANCH: tl.constexpr, D: tl.constexpr):
    """The gates of one branch as a column, and what it found, in fp32."""
    gate = tl.load(gates_ptr + row * 3 + BRANCH, mask=is_row, other=0.0).to(tl.float32)
    return gate[:, None], load_tile(branch_ptr, row, D, is_row, D).to(tl.float32)


@triton.jit(do_not_specialize=["count"])
def nsa_mix_kernel(
    gates_ptr, compressed_ptr, selected_ptr, window_ptr, mixed_ptr, count, D: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < count
    gate, found = load_branch(gates_ptr, compressed_ptr, row, is_row, 0, D)
    mixed = gate * found
    gate, found = load_branch(gates_ptr, selected_ptr, row, is_row, 1, D)
    mixed += gate * found
    gate, found = load_branch(gates_ptr, window_ptr, row, is_row, 2, D)
    store_tile(mixed_ptr, row, D, is_row, mixed + gate * found, D)


@triton.jit
def differentiate(
    gates_ptr, branch_ptr, dgates_ptr, dbranch_ptr, grad, row, is_row, BRANCH: tl.constexpr, D: tl.constexpr
):
    gate, found = load_branch(gates_ptr, branch_ptr, row, is_row, BRANCH, D)
    store_tile(dbranch_ptr, row, D, is_row, gate * grad, D)
    of_gate = tl.sum(grad * found, 1).to(dgates_ptr.dtype.element_ty)
    tl.store(dgates_ptr + row * 3 + BRANCH, of_gate, mask=is_row)


@triton.jit(do_not_specialize=["count"])
def nsa_mix_gradient_kernel(
    gates_ptr, compressed_ptr, selected_ptr, window_ptr, grad_ptr, dgates_ptr, dcompressed_ptr, dselected_ptr, dwindow_ptr, count,
    D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < count
    grad = load_tile(grad_ptr, row, D, is_row, D).to(tl.float32)
    differentiate(gates_ptr, compressed_ptr, dgates_ptr, dcompressed_ptr, grad, row, is_row, 0, D)
    differentiate(gates_ptr, selected_ptr, dgates_ptr, dselected_ptr, grad, row, is_row, 1, D)
    differentiate(gates_ptr, window_ptr, dgates_ptr, dwindow_ptr, grad, row, is_row, 2, D)
