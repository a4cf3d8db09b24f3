# mypy: ignore-errors
"""The GPU kernels of attention in which query t sees the keys from low[t] up to, not including, high[t], in Triton.

range_attention.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

Both ends never go back as t goes on, within a row of the batch: so a tile of queries meets one stretch of keys, and a tile of keys one
stretch of queries. The sliding window, the compressed branch and whole packed documents are all of this kind. Nothing is
summed by atomics: the same input gives the same bits.

q_BTHD, out_BTHD, k_BSGD, v_BSGD, low_BT, high_BT, lse_BHT (of scores in base 2; +inf where a query sees nothing), delta_BTH.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.tile_kernels import load_tile, store_tile


@triton.jit
def load_ends(low_ptr, high_ptr, t, T):
    """What the queries of a tile see; nothing beyond the last query."""
    return tl.load(low_ptr + t, mask=t < T, other=0), tl.load(high_ptr + t, mask=t < T, other=0)


@triton.jit
def open_tile(
    q_ptr, low_ptr, high_ptr, T, S, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """Of this program's tile of queries of one head: t, the queries, what they see, where the head begins in q_BTHD, the places in lse_BHT,
    where the group begins in k_BSGD, and the stretch of keys that any of them sees.
    """
    # The last tiles see the most: they begin first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    g = h // (H // G)
    t = first + tl.arange(0, BM)
    low, high = load_ends(low_ptr + b * T, high_ptr + b * T, t, T)
    offset = (b.to(tl.int64) * T * H + h) * D
    q = load_tile(q_ptr + offset, t, H * D, t < T, D)
    keys = (b.to(tl.int64) * S * G + g) * D
    begin = tl.load(low_ptr + b * T + first)
    end = tl.load(high_ptr + b * T + tl.minimum(first + BM, T) - 1)
    return t, q, low, high, offset, (b * H + h) * T + t, keys, begin, end


@triton.jit(do_not_specialize=["T", "S"])
def nsa_range_forward_kernel(
    q_ptr, k_ptr, v_ptr, low_ptr, high_ptr, out_ptr, lse_ptr, T, S, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out and lse of one tile of queries of one head, by the running softmax."""
    t, q, low, high, offset, of_query, keys, begin, end = open_tile(q_ptr, low_ptr, high_ptr, T, S, H, G, D, BM)
    k_ptr += keys
    v_ptr += keys
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for start in range(begin, end, BN):
        s = start + tl.arange(0, BN)
        score = tl.dot(q, tl.trans(load_tile(k_ptr, s, G * D, s < S, D)), input_precision=PRECISION) * scale
        score = tl.where((s[None, :] >= low[:, None]) & (s[None, :] < high[:, None]), score, float("-inf"))
        larger = tl.maximum(most, tl.max(score, 1))
        # A row that has seen nothing yet: -inf less -inf is not a number.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        p = tl.exp2(score - base[:, None])
        shrink = tl.exp2(most - base)
        total = total * shrink + tl.sum(p, 1)
        v = load_tile(v_ptr, s, G * D, s < S, D)
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        most = larger
    sees = total > 0
    out = out / tl.where(sees, total, 1.0)[:, None]
    store_tile(out_ptr + offset, t, H * D, t < T, out, D)
    lse = tl.where(sees, most + tl.log2(tl.where(sees, total, 1.0)), float("inf"))
    tl.store(lse_ptr + of_query, lse, mask=t < T)


@triton.jit
def probabilities(q, k, s, low, high, lse, scale, PRECISION: tl.constexpr):
    """What the forward's softmax gave, once more."""
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    sees = (s[None, :] >= low[:, None]) & (s[None, :] < high[:, None])
    return tl.where(sees, tl.exp2(score - lse[:, None]), 0.0)


@triton.jit(do_not_specialize=["T", "S"])
def nsa_range_query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, low_ptr, high_ptr, lse_ptr, delta_ptr, grad_ptr, dq_ptr, T, S, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries of one head."""
    t, q, low, high, offset, of_query, keys, begin, end = open_tile(q_ptr, low_ptr, high_ptr, T, S, H, G, D, BM)
    k_ptr += keys
    v_ptr += keys
    grad = load_tile(grad_ptr + offset, t, H * D, t < T, D)
    lse = tl.load(lse_ptr + of_query, mask=t < T, other=float("inf"))
    delta = tl.load(delta_ptr + offset // D + t * H, mask=t < T, other=0.0)
    dq = tl.zeros([BM, D], tl.float32)
    for start in range(begin, end, BN):
        s = start + tl.arange(0, BN)
        k, v = load_tile(k_ptr, s, G * D, s < S, D), load_tile(v_ptr, s, G * D, s < S, D)
        p = probabilities(q, k, s, low, high, lse, scale, PRECISION)
        ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision=PRECISION)
    store_tile(dq_ptr + offset, t, H * D, t < T, dq * factor, D)


@triton.jit(do_not_specialize=["T", "S"])
def nsa_range_key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, low_ptr, high_ptr, since_ptr, until_ptr, lse_ptr, delta_ptr, grad_ptr, dk_ptr, dv_ptr, T, S, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one group: SHARE of its heads, one after another, and the queries since[s] to until[s].

    dk and dv are (H / G / SHARE, B, S, G, D): what each share of the heads adds.
    """
    first = tl.program_id(0) * BN
    b, g = tl.program_id(1) // G, tl.program_id(1) % G
    share = tl.program_id(2)
    s = first + tl.arange(0, BN)
    offset = (b.to(tl.int64) * S * G + g) * D
    k, v = load_tile(k_ptr + offset, s, G * D, s < S, D), load_tile(v_ptr + offset, s, G * D, s < S, D)
    dk, dv = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    begin = tl.load(since_ptr + b * S + first)
    end = tl.load(until_ptr + b * S + tl.minimum(first + BN, S) - 1)
    for h in range(g * (H // G) + share * SHARE, g * (H // G) + (share + 1) * SHARE):
        rows = (b.to(tl.int64) * T * H + h) * D
        for start in range(begin, end, BM):
            t = start + tl.arange(0, BM)
            low, high = load_ends(low_ptr + b * T, high_ptr + b * T, t, T)
            q = load_tile(q_ptr + rows, t, H * D, t < T, D)
            grad = load_tile(grad_ptr + rows, t, H * D, t < T, D)
            lse = tl.load(lse_ptr + (b * H + h) * T + t, mask=t < T, other=float("inf"))
            delta = tl.load(delta_ptr + rows // D + t * H, mask=t < T, other=0.0)
            p = probabilities(q, k, s, low, high, lse, scale, PRECISION)
            dv += tl.dot(tl.trans(p.to(grad.dtype)), grad, input_precision=PRECISION)
            ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION)
    offset += share * (tl.num_programs(1) // G).to(tl.int64) * S * G * D
    store_tile(dk_ptr + offset, s, G * D, s < S, dk * factor, D)
    store_tile(dv_ptr + offset, s, G * D, s < S, dv, D)
