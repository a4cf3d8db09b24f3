# mypy: ignore-errors
"""The GPU kernels of attention in which query t sees the keys from low[t] up to, not including, high[t], in Triton.

range_attention.py launches them, and imports this file only where Triton is. mypy knows nothing of Triton's language.

Both ends never go back as t goes on, within a row of the batch: so a tile of queries meets one stretch of keys, and a tile of keys one
stretch of queries. The sliding window, the compressed branch and whole packed documents are all of this kind. Nothing is
summed by atomics: the same input gives the same bits.

With SELECTION a query sees only some blocks of so many keys of its stretch, which is all of its document's past then: those whose bits are set
in a word of its own. Tiles of keys are no longer than blocks, so one has keys of two blocks of a document at most, and what a query sees of
it is a stretch again; where its keys are of one block, as in tiles counted from the document's start, it is all of them or none. So a
tile costs a question per query, not one per query and key.

q_BTHD, out_BTHD, k_BSGD, v_BSGD, low_BT, high_BT, word_BGT, lse_BHT (of scores in base 2; +inf where a query sees nothing), logsum_BHT (the same
as a natural logarithm; -inf there), delta_BHT: Σ out · grad over the width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.kernels.tile_kernels import load_tile, store_tile

LN_2 = tl.constexpr(0.6931471805599453)


def name_after(work):
    """Kernels are told apart by their names in a profile: with words they compute the selected branch."""
    return lambda made: f"nsa_{'chosen_past' if made.constants['SELECTION'] else 'range'}_{work}_kernel"


@triton.jit
def load_ends(low_ptr, high_ptr, t, T):
    """What the queries of a tile see; nothing beyond the last query."""
    return tl.load(low_ptr + t, mask=t < T, other=0), tl.load(high_ptr + t, mask=t < T, other=0)


@triton.jit
def find_program(SELECTION: tl.constexpr):
    """Its tile; and its row with head or group. Of whole pasts tiles differ most: those that have the most to do, of all rows, go first."""
    if SELECTION:
        tile, x = tl.program_id(1), tl.program_id(0)
    else:
        tile, x = tl.program_id(0), tl.program_id(1)
    return tile, x


@triton.jit
def load_words(word_ptr, row, t, is_query, SELECTION: tl.constexpr):
    """The words of a tile's queries, whose row and group begin with place `row`; without any, nothing is read."""
    return tl.load(word_ptr + row + t, mask=is_query, other=0) if SELECTION else 0


@triton.jit
def has_bit(word, block):
    return ((word >> block) & 1) != 0


@triton.jit
def find_seen(low, high, word, start, s, SELECTION: tl.constexpr):
    """Which queries of a tile see which keys of one that begins with `start`."""
    if SELECTION:
        # Of its document the tile has keys of this block and the next.
        block = tl.maximum(start - low, 0) // SELECTION
        border = low + (block + 1) * SELECTION
        low = tl.where(has_bit(word, block), low, border)
        high = tl.where(has_bit(word, tl.minimum(block + 1, 31)), high, tl.minimum(high, border))
    return (s[None, :] >= low[:, None]) & (s[None, :] < high[:, None])


@triton.jit
def open_tile(
    q_desc, low_ptr, high_ptr, word_ptr, T, S,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SELECTION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Of this program's tile of queries of one head: t, the queries, what they see, where the tile lies in (B · T, H · D), the places in
    lse_BHT, where row and group begin in (B · S, G · D), and the stretch of keys that any of them sees, with the tiles in it that all of them
    see whole.
    """
    tile, x = find_program(SELECTION)
    # The last tiles see the most: they begin first.
    first = (tl.cdiv(T, BM) - 1 - tile) * BM
    last = tl.minimum(first + BM, T) - 1
    b, h = x // H, x % H
    g = h // (H // G)
    t = first + tl.arange(0, BM)
    low, high = load_ends(low_ptr + b * T, high_ptr + b * T, t, T)
    word = load_words(word_ptr, (b * G + g) * T, t, t < T, SELECTION)
    q = q_desc.load([b * T + first, h * D])
    begin, end = tl.load(low_ptr + b * T + first), tl.load(high_ptr + b * T + last)
    whole, rest = find_whole(begin, end, tl.load(low_ptr + b * T + last), tl.load(high_ptr + b * T + first), BN)
    return t, q, low, high, word, b * T + first, h * D, (b * H + h) * T + t, b * S, g * D, begin, whole, rest, end


@triton.jit
def find_whole(begin, end, low, high, SIZE: tl.constexpr):
    """Of tiles of SIZE from `begin` on: where those begin that lie wholly from `low` up to `high`, and where they end."""
    whole = tl.minimum(begin + (low - begin + SIZE - 1) // SIZE * SIZE, end)
    return whole, whole + tl.maximum(high - whole, 0) // SIZE * SIZE


@triton.jit
def read_tile(
    q, k_desc, v_desc, row, column, begin, start, low, high, word, most, total, out, scale,
    SELECTION: tl.constexpr, BN: tl.constexpr, IS_WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax, one tile of keys further."""
    s = start + tl.arange(0, BN)
    k = k_desc.load([row + start, column])
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if not IS_WHOLE:
        score = tl.where(find_seen(low, high, word, start, s, SELECTION), score, float("-inf"))
    highest = tl.max(score, 1) * scale
    if SELECTION and IS_WHOLE:
        is_chosen = has_bit(word, (start - begin) // SELECTION)
        highest = tl.where(is_chosen, highest, float("-inf"))
    larger = tl.maximum(most, highest)
    # A row that has seen nothing yet: -inf less -inf is not a number.
    base = larger if IS_WHOLE and not SELECTION else tl.where(larger == float("-inf"), 0.0, larger)
    shrink = tl.exp2(most - base)
    if SELECTION and IS_WHOLE:
        base = tl.where(is_chosen, base, float("inf"))
    p = tl.exp2(score * scale - base[:, None])
    v = v_desc.load([row + start, column])
    out = tl.dot(p.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
    return larger, total * shrink + tl.sum(p, 1), out


@triton.jit(do_not_specialize=["T", "S"], repr=name_after("forward"))
def nsa_range_forward_kernel(
    q_desc, k_desc, v_desc, low_ptr, high_ptr, word_ptr, out_ptr, lse_ptr, logsum_ptr, T, S, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SELECTION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out and lse of one tile of queries of one head, by the running softmax."""
    t, q, low, high, word, at, of_head, of_query, row, column, begin, whole, rest, end = open_tile(
        q_desc, low_ptr, high_ptr, word_ptr, T, S, H, G, D, SELECTION, BM, BN
    )
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for start in range(begin, whole, BN):
        most, total, out = read_tile(
            q, k_desc, v_desc, row, column, begin, start, low, high, word, most, total, out, scale, SELECTION, BN, False, PRECISION,
        )  # fmt: skip
    for start in range(whole, rest, BN):
        most, total, out = read_tile(
            q, k_desc, v_desc, row, column, begin, start, low, high, word, most, total, out, scale, SELECTION, BN, True, PRECISION,
        )  # fmt: skip
    for start in range(rest, end, BN):
        most, total, out = read_tile(
            q, k_desc, v_desc, row, column, begin, start, low, high, word, most, total, out, scale, SELECTION, BN, False, PRECISION,
        )  # fmt: skip
    sees_any = total > 0
    out = out / tl.where(sees_any, total, 1.0)[:, None]
    store_tile(out_ptr + at.to(tl.int64) * H * D + of_head, tl.arange(0, BM), H * D, t < T, out, D)
    lse = most + tl.log2(tl.where(sees_any, total, 1.0))
    tl.store(lse_ptr + of_query, tl.where(sees_any, lse, float("inf")), mask=t < T)
    tl.store(logsum_ptr + of_query, tl.where(sees_any, lse * LN_2, float("-inf")), mask=t < T)


@triton.jit
def add_query_gradient(
    dq, q, k_desc, v_desc, row, column, grad, begin, start, low, high, word, lse, delta, scale,
    SELECTION: tl.constexpr, BN: tl.constexpr, IS_WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, with one tile of keys more."""
    s = start + tl.arange(0, BN)
    k, v = k_desc.load([row + start, column]), v_desc.load([row + start, column])
    if SELECTION and IS_WHOLE:
        lse = tl.where(has_bit(word, (start - begin) // SELECTION), lse, float("inf"))
    p = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - lse[:, None])
    if not IS_WHOLE:
        p = tl.where(find_seen(low, high, word, start, s, SELECTION), p, 0.0)
    ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T", "S"], repr=name_after("query_gradient"))
def nsa_range_query_gradient_kernel(
    q_desc, k_desc, v_desc, low_ptr, high_ptr, word_ptr, out_ptr, lse_ptr, grad_desc, delta_ptr, dq_ptr, T, S, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SELECTION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries of one head; and their delta, which the gradients of the keys need as well."""
    t, q, low, high, word, at, of_head, of_query, row, column, begin, whole, rest, end = open_tile(
        q_desc, low_ptr, high_ptr, word_ptr, T, S, H, G, D, SELECTION, BM, BN
    )
    grad = grad_desc.load([at, of_head])
    lse = tl.load(lse_ptr + of_query, mask=t < T, other=float("inf"))
    out = load_tile(out_ptr + at.to(tl.int64) * H * D + of_head, tl.arange(0, BM), H * D, t < T, D)
    delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(delta_ptr + of_query, delta, mask=t < T)
    dq = tl.zeros([BM, D], tl.float32)
    for start in range(begin, whole, BN):
        dq = add_query_gradient(
            dq, q, k_desc, v_desc, row, column, grad, begin, start, low, high, word, lse, delta, scale, SELECTION, BN, False, PRECISION,
        )  # fmt: skip
    for start in range(whole, rest, BN):
        dq = add_query_gradient(
            dq, q, k_desc, v_desc, row, column, grad, begin, start, low, high, word, lse, delta, scale, SELECTION, BN, True, PRECISION,
        )  # fmt: skip
    for start in range(rest, end, BN):
        dq = add_query_gradient(
            dq, q, k_desc, v_desc, row, column, grad, begin, start, low, high, word, lse, delta, scale, SELECTION, BN, False, PRECISION,
        )  # fmt: skip
    store_tile(dq_ptr + at.to(tl.int64) * H * D + of_head, tl.arange(0, BM), H * D, t < T, dq * factor, D)


@triton.jit
def add_key_gradients(
    dk, dv, q_desc, k, v, grad_desc, row, column, low_ptr, high_ptr, word_ptr, lse_ptr, delta_ptr, of_group, first, s, block, start, T, scale,
    SELECTION: tl.constexpr, BM: tl.constexpr, IS_WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv, with one tile of queries more."""
    t = start + tl.arange(0, BM)
    is_query = (t >= 0) if IS_WHOLE else (t < T)
    if not IS_WHOLE:
        low, high = load_ends(low_ptr, high_ptr, t, T)
    word = load_words(word_ptr, of_group, t, is_query, SELECTION)
    q, grad = q_desc.load([row + start, column]), grad_desc.load([row + start, column])
    lse = tl.load(lse_ptr + t, mask=is_query, other=float("inf"))
    delta = tl.load(delta_ptr + t, mask=is_query, other=0.0)
    if SELECTION and IS_WHOLE:
        lse = tl.where(has_bit(word, block), lse, float("inf"))
    p = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - lse[:, None])
    if not IS_WHOLE:
        p = tl.where(find_seen(low, high, word, first, s, SELECTION), p, 0.0)
    dv = tl.dot(tl.trans(p.to(grad.dtype)), grad, dv, input_precision=PRECISION)
    ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
    return tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision=PRECISION), dv


@triton.jit(do_not_specialize=["T", "S"], repr=name_after("key_gradient"))
def nsa_range_key_gradient_kernel(
    q_desc, k_desc, v_desc, low_ptr, high_ptr, since_ptr, until_ptr, word_ptr, lse_ptr, delta_ptr, grad_desc, dk_ptr, dv_ptr, T, S, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SELECTION: tl.constexpr, SHARE: tl.constexpr, SPANS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one group: SHARE of its heads, one after another, and one of the spans of queries since[s] to until[s].

    dk and dv are (H / G / SHARE · SPANS, B, S, G, D): what each share of the heads and each span adds.
    """
    tile, x = find_program(SELECTION)
    first = tile * BN
    last = tl.minimum(first + BN, S) - 1
    b, g = x // G, x % G
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
    block = 0
    if SELECTION:
        # Keys and queries are the same tokens. Tiles of keys begin anywhere in a document: with keys of two blocks none is seen whole.
        block = (first - tl.load(low_ptr + first)) // SELECTION
        if (last - tl.load(low_ptr + last)) // SELECTION != block:
            whole = end
            rest = end
    for h in range(g * (H // G) + share * SHARE, g * (H // G) + (share + 1) * SHARE):
        of_head = (b * H + h) * T
        # From the last query back: where the past is long, all tiles of keys end there, so that programs side by side read the same queries.
        for i in range(tl.cdiv(end - rest, BM)):
            start = rest + (tl.cdiv(end - rest, BM) - 1 - i) * BM
            dk, dv = add_key_gradients(
                dk, dv, q_desc, k, v, grad_desc, b * T, h * D, low_ptr, high_ptr, word_ptr, lse_ptr + of_head, delta_ptr + of_head,
                (b * G + g) * T, first, s, block, start, T, scale, SELECTION, BM, False, PRECISION,
            )  # fmt: skip
        for i in range((rest - whole) // BM):
            dk, dv = add_key_gradients(
                dk, dv, q_desc, k, v, grad_desc, b * T, h * D, low_ptr, high_ptr, word_ptr, lse_ptr + of_head, delta_ptr + of_head,
                (b * G + g) * T, first, s, block, rest - (i + 1) * BM, T, scale, SELECTION, BM, True, PRECISION,
            )  # fmt: skip
        for i in range(tl.cdiv(whole - begin, BM)):
            start = begin + (tl.cdiv(whole - begin, BM) - 1 - i) * BM
            dk, dv = add_key_gradients(
                dk, dv, q_desc, k, v, grad_desc, b * T, h * D, low_ptr, high_ptr, word_ptr, lse_ptr + of_head, delta_ptr + of_head,
                (b * G + g) * T, first, s, block, start, T, scale, SELECTION, BM, False, PRECISION,
            )  # fmt: skip
    offset += tl.program_id(2) * (tl.num_programs(0 if SELECTION else 1) // G).to(tl.int64) * S * G * D
    store_tile(dk_ptr + offset, tl.arange(0, BN), G * D, s < S, dk * factor, D)
    store_tile(dv_ptr + offset, tl.arange(0, BN), G * D, s < S, dv, D)
