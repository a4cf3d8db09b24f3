# mypy: ignore-errors
"""The GPU kernels that choose selection blocks, in Triton: scores from the probabilities of compressed blocks, and the highest of them.

fast_selection.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

q_BTHD, k_BNGD (compressed keys, turned), lse_BHT (natural; -inf where a query sees none), first_BT and seen_BT (slots a query sees),
position_BT (in the document), after_BT (the token after the document), scores_aBGQJ (Q queries from `begin` on; J blocks of a document).

A compressed block may reach into the selection blocks after the one that it begins in. What it adds a blocks further on stands in
scores_a, so that each program writes what it alone knows: the score of block j is the sum of scores_a[j - a].
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
_INFINITE = tl.constexpr(0x7F800000)
"""the bits of an infinite score: above all others"""


@triton.jit(do_not_specialize=["begin", "T", "N", "Q", "J"])
def nsa_score_kernel(
    q_desc, k_desc, lse_ptr, first_ptr, seen_ptr, position_ptr, after_ptr, scores_ptr, begin, T, N, Q, J, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SELECTION: tl.constexpr, PER_BLOCK: tl.constexpr, PER_SELECTION: tl.constexpr,
    REACH: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of one tile of queries of one group, from SLOTS compressed blocks of each of their documents."""
    R: tl.constexpr = H // G
    x = tl.program_id(2)
    b, g = (x // G).to(tl.int64), x % G
    # Programs that read the same queries come one after another.
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    t = begin + row
    here = begin + tl.program_id(1) * BM
    end = begin + tl.minimum((tl.program_id(1) + 1) * BM, Q)
    seen = tl.load(seen_ptr + b * T + t, mask=t < end, other=0)
    queries = (b * T + here).to(tl.int32)
    lse_ptr += (b * H + g * R) * T
    size = tl.num_programs(2).to(tl.int64) * Q * J
    scores_ptr += x.to(tl.int64) * Q * J
    share = tl.arange(0, PER_SELECTION)
    while here < end:
        low = tl.load(first_ptr + b * T + here)
        after = tl.minimum(tl.load(after_ptr + b * T + here), end)
        slots = (tl.load(position_ptr + b * T + after - 1) // SELECTION + 1) * PER_SELECTION
        mine = (t >= here) & (t < after)
        begins = tl.program_id(0) * SLOTS
        for start in range(begins, tl.minimum(begins + SLOTS, slots), BN):
            slot = low + start + tl.arange(0, BN)
            k = tl.trans(k_desc.load([(b * N).to(tl.int32) + low + start, g * D]))
            weight = tl.zeros([BM, BN], tl.float32)
            for r in range(R):
                q = q_desc.load([queries, (g * R + r) * D])
                lse = tl.load(lse_ptr + r * T + t, mask=mine, other=0.0) * LOG2_E
                weight += tl.exp2(tl.dot(q, k, input_precision=PRECISION) * scale - lse[:, None])
            weight = tl.where(slot[None, :] < seen[:, None], weight, 0.0)
            weight = tl.reshape(weight, [BM, BN // PER_SELECTION, PER_SELECTION])
            block = start // PER_SELECTION + tl.arange(0, BN // PER_SELECTION)
            into = scores_ptr + (row[:, None] * J + block[None, :])
            for a in tl.static_range(REACH):
                strides = tl.minimum(share + PER_BLOCK, (a + 1) * PER_SELECTION) - tl.maximum(share, a * PER_SELECTION)
                score = tl.sum(weight * tl.maximum(strides, 0).to(tl.float32)[None, None, :], 2)
                tl.store(into + a * size, score, mask=mine[:, None] & (block < J)[None, :])
        here = after


@triton.jit(do_not_specialize=["begin", "T", "Q", "J"])
def nsa_score_highest_kernel(
    scores_ptr, position_ptr, blocks_ptr, begin, T, Q, J,
    G: tl.constexpr, N: tl.constexpr, SELECTION: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, REACH: tl.constexpr,
    BQ: tl.constexpr, JP: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    """The N blocks of each query, rising, -1 behind them: those in force, then the highest scores; of equal ones the lower number.

    Scores are not negative: their bits, read as whole numbers, have their order. A level that N of them lie above is found bit by bit; half
    of the bits are enough for most queries, and where several are equal at the border, all of them.
    """
    x = tl.program_id(1)
    b, g = (x // G).to(tl.int64), x % G
    row = tl.program_id(0) * BQ + tl.arange(0, BQ)
    is_query = row < Q
    own = tl.load(position_ptr + b * T + begin + row, mask=is_query, other=0) // SELECTION
    j = tl.arange(0, JP)
    is_past = is_query[:, None] & (j[None, :] <= own[:, None])
    is_forced = (j[None, :] < INITIAL) | (j[None, :] > own[:, None] - LOCAL)
    size = tl.num_programs(1).to(tl.int64) * Q * J
    scores_ptr += x.to(tl.int64) * Q * J + row[:, None].to(tl.int64) * J + j[None, :]
    score = tl.zeros([BQ, JP], tl.float32)
    for a in tl.static_range(REACH):
        score += tl.load(scores_ptr + a * size - a, mask=is_past & ~is_forced & (j >= a)[None, :], other=0.0)
    # What is not a number must not be negative as a whole one: places would stay empty.
    bits = tl.where(is_forced, _INFINITE, score.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    bits = tl.where(is_past, bits, -1)
    wanted = tl.minimum(own + 1, N)
    level = tl.zeros([BQ], tl.int32)
    is_found = ~is_query
    bit = 30
    while (bit >= 0) & (tl.min(is_found.to(tl.int32), 0) == 0):
        higher = level | (1 << bit)
        count = tl.sum((bits >= higher[:, None]).to(tl.int32), 1)
        level = tl.where(is_found | (count < wanted), level, tl.where(count == wanted, higher - 1, higher))
        is_found |= count == wanted
        bit -= 1
    is_chosen = bits > level[:, None]
    if tl.min(is_found.to(tl.int32), 0) == 0:
        is_equal = bits == level[:, None]
        rest = wanted - tl.sum(is_chosen.to(tl.int32), 1)
        is_chosen |= is_equal & (tl.cumsum(is_equal.to(tl.int32), 1) <= rest[:, None])
    place = tl.cumsum(is_chosen.to(tl.int32), 1) - 1
    into = blocks_ptr + ((b * T + begin + row) * G + g)[:, None] * N
    tl.store(into + place, tl.broadcast_to(j[None, :], [BQ, JP]).to(tl.int64), mask=is_chosen & is_query[:, None])
    n = tl.arange(0, NP)
    none = tl.full([BQ, NP], -1, tl.int64)
    tl.store(into + n[None, :], none, mask=is_query[:, None] & (n[None, :] >= wanted[:, None]) & (n < N)[None, :])
