# mypy: ignore-errors
"""The GPU kernel that scores selection blocks, in Triton: probabilities of compressed blocks, summed over overlaps and heads of a group.

fast_selection.py launches it; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

q_BTHD, k_BNGD (compressed keys, turned), lse_BHT (natural; -inf where a query sees none), first_BT and seen_BT (slots a query sees),
low_BT and high_BT (selection blocks of a query's document up to its own, in the row's count), slot_BX (the slot with which the blocks of
the row begin), scores_BGQJ (Q queries from `begin` on; J blocks of a document).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["begin", "T", "N", "Q", "J"])
def nsa_score_kernel(
    q_ptr, k_ptr, lse_ptr, first_ptr, seen_ptr, low_ptr, high_ptr, slot_ptr, scores_ptr, begin, T, N, Q, J, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, PER_BLOCK: tl.constexpr, PER_SELECTION: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of one tile of queries of one group, for all selection blocks that any of them may look at."""
    R: tl.constexpr = H // G
    b, g = (tl.program_id(1) // G).to(tl.int64), tl.program_id(1) % G
    d = tl.arange(0, D)
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM + tl.arange(0, BM)
    t = begin + row
    is_query = (row < Q) & (t < T)
    at = b * T + t
    first, seen = tl.load(first_ptr + at, mask=is_query, other=0), tl.load(seen_ptr + at, mask=is_query, other=0)
    low, high = tl.load(low_ptr + at, mask=is_query, other=0), tl.load(high_ptr + at, mask=is_query, other=0)
    k_ptr += (b * N * G + g) * D
    q_ptr += (b * T * H + g * R) * D
    lse_ptr += (b * H + g * R) * T
    scores_ptr += (b * G + g) * Q * J
    lowest = tl.min(tl.where(is_query, low, 2147483647), 0)
    for start in range(lowest, tl.max(high, 0), BJ):
        block = start + tl.arange(0, BJ)
        slot_of_block = tl.load(slot_ptr + b * T + block, mask=block < T, other=0)
        score = tl.zeros([BM, BJ], tl.float32)
        for offset in tl.static_range(1 - PER_BLOCK, PER_SELECTION):
            slot = slot_of_block + offset
            is_slot = (slot >= 0) & (slot < N)
            k = tl.load(k_ptr + slot[None, :].to(tl.int64) * G * D + d[:, None], mask=is_slot[None, :], other=0.0)
            sees = (slot[None, :] >= first[:, None]) & (slot[None, :] < seen[:, None])
            for r in range(R):
                q = tl.load(
                    q_ptr + (t[:, None].to(tl.int64) * H + r) * D + d[None, :], mask=is_query[:, None], other=0.0
                )
                lse = tl.load(lse_ptr + r * T + t, mask=is_query, other=0.0) * LOG2_E
                p = tl.exp2(tl.dot(q, k, input_precision=PRECISION) * scale - lse[:, None])
                score += (min(offset + PER_BLOCK, PER_SELECTION) - max(offset, 0)) * tl.where(sees, p, 0.0)
        is_block = is_query[:, None] & (block[None, :] >= low[:, None]) & (block[None, :] < high[:, None])
        tl.store(scores_ptr + row[:, None] * J + block[None, :] - low[:, None], score, mask=is_block)
