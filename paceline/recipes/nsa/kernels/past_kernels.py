# mypy: ignore-errors
"""The GPU kernel that writes a query's chosen blocks as the bits of a word, in Triton; attention itself is in range_kernels.py.

past_attention.py launches it; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

blocks_BTGn: numbers of blocks below 32, each once, -1 for none. word_BGT.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T"])
def nsa_chosen_past_words_kernel(
    blocks_ptr, word_ptr, T, G: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, ROWS: tl.constexpr
):
    """Of some queries and groups of one row."""
    b = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, NP)
    is_there = (row < T * G)[:, None] & (n < N)[None, :]
    places = blocks_ptr + b * T * G * N + row[:, None] * N + n[None, :]
    block = tl.load(places, mask=is_there, other=-1).to(tl.int32)
    # Each bit once at most: their sum has them all.
    word = tl.sum(tl.where(block >= 0, 1 << tl.maximum(block, 0), 0), 1)
    tl.store(word_ptr + b * T * G + row % G * T + row // G, word, mask=row < T * G)
