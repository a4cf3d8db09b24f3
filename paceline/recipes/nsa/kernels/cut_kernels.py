# mypy: ignore-errors
"""The GPU kernels that cut keys or values into overlapping blocks, in Triton, and give the blocks' gradients back to the tokens.

fast_compression.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

states_BTGD, ends_BN (the last token of each slot's block), flat_BNGlD, mean_BNGD, cover_BTc (the blocks that a token lies in, as
slot · l + place; -1 for none).
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.kernels.tile_kernels import load_tile, store_tile


@triton.jit(do_not_specialize=["T", "N"])
def nsa_cut_kernel(
    states_ptr, ends_ptr, flat_ptr, mean_ptr, T, N,
    STRIDE: tl.constexpr, G: tl.constexpr, D: tl.constexpr, L: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """One block of one group: its tokens, STRIDE apart, side by side, and their mean. Of an empty slot some tokens or other, which nobody
    sees.
    """
    slot, x = tl.program_id(0), tl.program_id(1)
    b, g = (x // G).to(tl.int64), x % G
    i = tl.arange(0, LP)
    token = tl.load(ends_ptr + b * N + slot) - (L - 1) + i
    token = tl.minimum(tl.maximum(token, 0), T - 1)
    block = load_tile(states_ptr + b * T * STRIDE + g * D, token, STRIDE, i < L, D)
    into = (b * N + slot) * G + g
    store_tile(flat_ptr + into * L * D, i, D, i < L, block, D)
    mean = tl.sum(block.to(tl.float32), 0) / L
    tl.store(mean_ptr + into * D + tl.arange(0, D), mean.to(mean_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "N"])
def nsa_cut_gradient_kernel(
    flat_ptr, mean_ptr, cover_ptr, states_ptr, T, N,
    G: tl.constexpr, D: tl.constexpr, L: tl.constexpr, COVERS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of each token, what its places in blocks and the blocks' means were given, in the order of the blocks."""
    x = tl.program_id(1)
    b, g = (x // G).to(tl.int64), x % G
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, D], tl.float32)
    for i in tl.static_range(COVERS):
        place = tl.load(cover_ptr + (b * T + t) * COVERS + i, mask=t < T, other=-1)
        is_place = place >= 0
        slot = tl.where(is_place, place // L, 0)
        block = (b * N + slot) * G + g
        total += load_tile(flat_ptr, block * L + place % L, D, is_place, D)
        total += load_tile(mean_ptr, block, D, is_place, D).to(tl.float32) / L
    store_tile(states_ptr, (b * T + t) * G + g, D, t < T, total, D)
