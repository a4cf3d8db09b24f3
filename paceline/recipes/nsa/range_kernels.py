# mypy: ignore-errors
"""The GPU kernels of attention in which query t sees the keys from low[t] up to, not including, high[t], in Triton.

range_attention.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

Both ends never go back as t goes on, within a row of the batch: so a tile of queries meets one stretch of keys, and a tile of keys one
stretch of queries. The sliding window, the compressed branch and whole packed documents are all of this kind. Nothing is
summed by atomics: the same input gives the same bits.

q_BTHD, out_BTHD, k_BSGD, v_BSGD, low_BT, high_BT, lse_BHT (of scores in base 2; +inf where a query sees nothing), delta_BHT.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.tile_kernels import store_tile


@triton.jit
def load_ends(low_ptr, high_ptr, t, T):
    """What the queries of a tile see; nothing beyond the last query."""
    return tl.load(low_ptr + t, mask=t < T, other=0), tl.load(high_ptr + t, mask=t < T, other=0)


@triton.jit
def open_tile(q_desc, low_ptr, high_ptr, T, S, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Of this program's tile of queries of one head: t, the queries, what they see, where the tile lies in (B · T, H · D), the places in
    lse_BHT, where row and group begin in (B · S, G · D), and the stretch of keys that any of them sees, with the tiles in it that all of them
    see whole.
    """
    # The last tiles see the most: they begin first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    last = tl.minimum(first + BM, T) - 1
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    g = h // (H // G)
    t = first + tl.arange(0, BM)
    low, high = load_ends(low_ptr + b * T, high_ptr + b * T, t, T)
    q = q_desc.load([b * T + first, h * D])
    begin, end = tl.load(low_ptr + b * T + first), tl.load(high_ptr + b * T + last)
    whole, rest = find_whole(begin, end, tl.load(low_ptr + b * T + last), tl.load(high_ptr + b * T + first), BN)
    return t, q, low, high, b * T + first, h * D, (b * H + h) * T + t, b * S, g * D, begin, whole, rest, end


@triton.jit
def find_whole(begin, end, low, high, SIZE: tl.constexpr):
    """Of tiles of SIZE from `begin` on: where those begin that lie wholly from `low` up to `high`, and where they end."""
    whole = tl.minimum(begin + (low - begin + SIZE - 1) // SIZE * SIZE, end)
    return whole, whole + tl.maximum(high - whole, 0) // SIZE * SIZE


@triton.jit
def read_tile(
    q, k_desc, v_desc, row, column, start, low, high, most, total, out, scale,
    BN: tl.constexpr, IS_WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax, one tile of keys further."""
    s = start + tl.arange(0, BN)
    k = k_desc.load([row + start, column])
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if not IS_WHOLE:
        score = tl.where((s[None, :] >= low[:, None]) & (s[None, :] < high[:, None]), score, float("-inf"))
    larger = tl.maximum(most, tl.max(score, 1) * scale)
    # A row that has seen nothing yet: -inf less -inf is not a number.
    base = larger if IS_WHOLE else tl.where(larger == float("-inf"), 0.0, larger)
    p = tl.exp2(score * scale - base[:, None])
    shrink = tl.exp2(most - base)
    v = v_desc.load([row + start, column])
    out = tl.dot(p.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
    return larger, total * shrink + tl.sum(p, 1), out


@triton.jit(do_not_specialize=["T", "S"])
def nsa_range_forward_kernel(
    q_desc, k_desc, v_desc, low_ptr, high_ptr, out_ptr, lse_ptr, T, S, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out and lse of one tile of queries of one head, by the running softmax."""
    t, q, low, high, at, of_head, of_query, row, column, begin, whole, rest, end = open_tile(
        q_desc, low_ptr, high_ptr, T, S, H, G, D, BM, BN
    )
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for start in range(begin, whole, BN):
        most, total, out = read_tile(
            q, k_desc, v_desc, row, column, start, low, high, most, total, out, scale, BN, False, PRECISION
        )
    for start in range(whole, rest, BN):
        most, total, out = read_tile(
            q, k_desc, v_desc, row, column, start, low, high, most, total, out, scale, BN, True, PRECISION
        )
    for start in range(rest, end, BN):
        most, total, out = read_tile(
            q, k_desc, v_desc, row, column, start, low, high, most, total, out, scale, BN, False, PRECISION
        )
    sees = total > 0
    out = out / tl.where(sees, total, 1.0)[:, None]
    store_tile(out_ptr + at.to(tl.int64) * H * D + of_head, tl.arange(0, BM), H * D, t < T, out, D)
    lse = tl.where(sees, most + tl.log2(tl.where(sees, total, 1.0)), float("inf"))
    tl.store(lse_ptr + of_query, lse, mask=t < T)


@triton.jit
def add_query_gradient(
    dq, q, k_desc, v_desc, row, column, grad, start, low, high, lse, delta, scale,
    BN: tl.constexpr, IS_WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, with one tile of keys more."""
    s = start + tl.arange(0, BN)
    k, v = k_desc.load([row + start, column]), v_desc.load([row + start, column])
    p = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - lse[:, None])
    if not IS_WHOLE:
        p = tl.where((s[None, :] >= low[:, None]) & (s[None, :] < high[:, None]), p, 0.0)
    ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T", "S"])
def nsa_range_query_gradient_kernel(
    q_desc, k_desc, v_desc, low_ptr, high_ptr, lse_ptr, delta_ptr, grad_desc, dq_ptr, T, S, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries of one head."""
    t, q, low, high, at, of_head, of_query, row, column, begin, whole, rest, end = open_tile(
        q_desc, low_ptr, high_ptr, T, S, H, G, D, BM, BN
    )
    grad = grad_desc.load([at, of_head])
    lse = tl.load(lse_ptr + of_query, mask=t < T, other=float("inf"))
    delta = tl.load(delta_ptr + of_query, mask=t < T, other=0.0)
    dq = tl.zeros([BM, D], tl.float32)
    for start in range(begin, whole, BN):
        dq = add_query_gradient(
            dq, q, k_desc, v_desc, row, column, grad, start, low, high, lse, delta, scale, BN, False, PRECISION
        )
    for start in range(whole, rest, BN):
        dq = add_query_gradient(
            dq, q, k_desc, v_desc, row, column, grad, start, low, high, lse, delta, scale, BN, True, PRECISION
        )
    for start in range(rest, end, BN):
        dq = add_query_gradient(
            dq, q, k_desc, v_desc, row, column, grad, start, low, high, lse, delta, scale, BN, False, PRECISION
        )
    store_tile(dq_ptr + at.to(tl.int64) * H * D + of_head, tl.arange(0, BM), H * D, t < T, dq * factor, D)


@triton.jit
def add_key_gradients(
    dk, dv, q_desc, k, v, grad_desc, row, column, low_ptr, high_ptr, lse_ptr, delta_ptr, s, start, T, scale,
    BM: tl.constexpr, IS_WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv, with one tile of queries more."""
    t = start + tl.arange(0, BM)
    is_query = (t >= 0) if IS_WHOLE else (t < T)
    if not IS_WHOLE:
        low, high = load_ends(low_ptr, high_ptr, t, T)
    q, grad = q_desc.load([row + start, column]), grad_desc.load([row + start, column])
    lse = tl.load(lse_ptr + t, mask=is_query, other=float("inf"))
    delta = tl.load(delta_ptr + t, mask=is_query, other=0.0)
    p = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - lse[:, None])
    if not IS_WHOLE:
        p = tl.where((s[None, :] >= low[:, None]) & (s[None, :] < high[:, None]), p, 0.0)
    dv = tl.dot(tl.trans(p.to(grad.dtype)), grad, dv, input_precision=PRECISION)
    ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
    return tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision=PRECISION), dv


@triton.jit(do_not_specialize=["T", "S"])
def nsa_range_key_gradient_kernel(
    q_desc, k_desc, v_desc, low_ptr, high_ptr, since_ptr, until_ptr, lse_ptr, delta_ptr, grad_desc, dk_ptr, dv_ptr, T, S, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SHARE: tl.constexpr, SPANS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one group: SHARE of its heads, one after another, and one of the spans of queries since[s] to until[s].

    dk and dv are (H / G / SHARE · SPANS, B, S, G, D): what each share of the heads and each span adds.
    """
    first = tl.program_id(0) * BN
    last = tl.minimum(first + BN, S) - 1
    b, g = tl.program_id(1) // G, tl.program_id(1) % G
    share = tl.program_id(2) // SPANS
    s = first + tl.arange(0, BN)
    offset = ((b.to(tl.int64) * S + first) * G + g) * D
    k, v = k_desc.load([b * S + first, g * D]), v_desc.load([b * S + first, g * D])
    dk, dv = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    since_ptr += b * S
    until_ptr += b * S
    low_ptr += b * T
    high_ptr += b * T
    begin, end = tl.load(since_ptr + first), tl.load(until_ptr + last)
    whole, rest = find_whole(begin, end, tl.load(since_ptr + last), tl.load(until_ptr + first), BM)
    # Its span of the queries: so many tiles from the first on, the last span the rest.
    size = tl.cdiv(tl.cdiv(end - begin, BM), SPANS) * BM
    begin = tl.minimum(begin + tl.program_id(2) % SPANS * size, end)
    end = tl.minimum(begin + size, end)
    whole = tl.minimum(tl.maximum(whole, begin), end)
    rest = tl.minimum(tl.maximum(rest, begin), end)
    for h in range(g * (H // G) + share * SHARE, g * (H // G) + (share + 1) * SHARE):
        of_head = (b * H + h) * T
        # From the last query back: where the past is long, all tiles of keys end there, so that programs side by side read the same queries.
        for i in range(0, tl.cdiv(end - rest, BM)):
            start = rest + (tl.cdiv(end - rest, BM) - 1 - i) * BM
            dk, dv = add_key_gradients(
                dk, dv, q_desc, k, v, grad_desc, b * T, h * D, low_ptr, high_ptr, lse_ptr + of_head, delta_ptr + of_head,
                s, start, T, scale, BM, False, PRECISION,
            )  # fmt: skip
        for i in range(0, (rest - whole) // BM):
            dk, dv = add_key_gradients(
                dk, dv, q_desc, k, v, grad_desc, b * T, h * D, low_ptr, high_ptr, lse_ptr + of_head, delta_ptr + of_head,
                s, rest - (i + 1) * BM, T, scale, BM, True, PRECISION,
            )  # fmt: skip
        for i in range(0, tl.cdiv(whole - begin, BM)):
            start = begin + (tl.cdiv(whole - begin, BM) - 1 - i) * BM
            dk, dv = add_key_gradients(
                dk, dv, q_desc, k, v, grad_desc, b * T, h * D, low_ptr, high_ptr, lse_ptr + of_head, delta_ptr + of_head,
                s, start, T, scale, BM, False, PRECISION,
            )  # fmt: skip
    offset += tl.program_id(2) * (tl.num_programs(1) // G).to(tl.int64) * S * G * D
    store_tile(dk_ptr + offset, tl.arange(0, BN), G * D, s < S, dk * factor, D)
    store_tile(dv_ptr + offset, tl.arange(0, BN), G * D, s < S, dv, D)
