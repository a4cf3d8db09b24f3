# mypy: ignore-errors
"""The GPU kernels of attention to chosen blocks of keys, in Triton: a query and all heads of its group read the same few blocks.

chosen_attention.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

q_BTHD, out_BTHD, k_BTGD, v_BTGD, chosen_BTGn: the first key of each block, -1 for none; a query sees the keys of a block up to itself.
lse_BHT in base 2, delta_BHT. R heads share a group, and take RP rows of a tile, the next power of two. The gradient of a block's
keys is summed over the queries that chose it, in the order of the sequence: nothing by atomics, the same input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.tile_kernels import load_tile, store_tile


@triton.jit
def open_query(
    q_ptr, k_ptr, v_ptr, chosen_ptr, T,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, RP: tl.constexpr,
):  # fmt: skip
    """Of this program's query and group: t, which rows of a tile are heads, their places in q_BTHD and in lse_BHT, their queries, and where
    the group's keys, its values and the query's blocks begin.
    """
    R: tl.constexpr = H // G
    t = tl.program_id(0)
    b, g = (tl.program_id(1) // G).to(tl.int64), tl.program_id(1) % G
    head = tl.arange(0, RP)
    rows = (b * T + t) * H + g * R + head
    q = load_tile(q_ptr, rows, D, head < R, D)
    keys = (b * T * G + g) * D
    of_query = (b * H + g * R + head) * T + t
    return t, head < R, rows, of_query, q, k_ptr + keys, v_ptr + keys, chosen_ptr + ((b * T + t) * G + g) * N


@triton.jit(do_not_specialize=["T"])
def nsa_chosen_forward_kernel(
    q_ptr, k_ptr, v_ptr, chosen_ptr, out_ptr, lse_ptr, T, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, L: tl.constexpr, RP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out and lse of one query, for the heads of one group."""
    t, is_head, rows, of_query, q, k_ptr, v_ptr, chosen_ptr = open_query(
        q_ptr, k_ptr, v_ptr, chosen_ptr, T, H, G, D, N, RP
    )
    most = tl.full([RP], float("-inf"), tl.float32)
    total = tl.zeros([RP], tl.float32)
    out = tl.zeros([RP, D], tl.float32)
    for i in range(N):
        first = tl.load(chosen_ptr + i)
        if first >= 0:
            s = first + tl.arange(0, L)
            k = load_tile(k_ptr, s, G * D, s <= t, D)
            score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            score = tl.where(s[None, :] <= t, score, float("-inf"))
            larger = tl.maximum(most, tl.max(score, 1))
            p = tl.exp2(score - larger[:, None])
            shrink = tl.exp2(most - larger)
            total = total * shrink + tl.sum(p, 1)
            v = load_tile(v_ptr, s, G * D, s <= t, D)
            out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
            most = larger
    # A query chooses its own block at least: its total is never 0.
    store_tile(out_ptr, rows, D, is_head, out / total[:, None], D)
    tl.store(lse_ptr + of_query, most + tl.log2(total), mask=is_head)


@triton.jit(do_not_specialize=["T"])
def nsa_chosen_query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, chosen_ptr, lse_ptr, delta_ptr, grad_ptr, dq_ptr, T, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, L: tl.constexpr, RP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of one query, for the heads of one group."""
    t, is_head, rows, of_query, q, k_ptr, v_ptr, chosen_ptr = open_query(
        q_ptr, k_ptr, v_ptr, chosen_ptr, T, H, G, D, N, RP
    )
    grad = load_tile(grad_ptr, rows, D, is_head, D)
    lse = tl.load(lse_ptr + of_query, mask=is_head, other=0.0)
    delta = tl.load(delta_ptr + of_query, mask=is_head, other=0.0)
    dq = tl.zeros([RP, D], tl.float32)
    for i in range(N):
        first = tl.load(chosen_ptr + i)
        if first >= 0:
            s = first + tl.arange(0, L)
            k, v = load_tile(k_ptr, s, G * D, s <= t, D), load_tile(v_ptr, s, G * D, s <= t, D)
            score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            p = tl.where(s[None, :] <= t, tl.exp2(score - lse[:, None]), 0.0)
            ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
            dq += tl.dot(ds.to(k.dtype), k, input_precision=PRECISION)
    store_tile(dq_ptr, rows, D, is_head, dq * factor, D)


@triton.jit(do_not_specialize=["T", "room", "parts_room"])
def nsa_chosen_key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, owner_ptr, query_ptr, work_ptr, count_ptr, lse_ptr, delta_ptr, grad_ptr, dk_ptr, dv_ptr, parts_ptr,
    T, room, parts_room, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, L: tl.constexpr, RQ: tl.constexpr, QB: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of the blocks of one row and group. A program takes one piece of work after another: a block, and some of the
    queries that chose it. Where those are all, it writes what the keys get; where not, a part for `nsa_chosen_sum_parts_kernel`.
    """
    R: tl.constexpr = H // G
    x = tl.program_id(1)
    b, g = (x // G).to(tl.int64), x % G
    row = tl.arange(0, QB * RQ)
    head = row % RQ
    keys = (b * T * G + g) * D
    query_ptr += x.to(tl.int64) * T * N
    work_ptr += x.to(tl.int64) * 5 * room
    for work in range(tl.program_id(0), tl.load(count_ptr + x), tl.num_programs(0)):
        first, begin = tl.load(work_ptr + work), tl.load(work_ptr + room + work)
        end, part = tl.load(work_ptr + 2 * room + work), tl.load(work_ptr + 3 * room + work)
        s = first + tl.arange(0, L)
        k, v = load_tile(k_ptr + keys, s, G * D, s < T, D), load_tile(v_ptr + keys, s, G * D, s < T, D)
        dk, dv = tl.zeros([L, D], tl.float32), tl.zeros([L, D], tl.float32)
        for start in range(begin, end, QB):
            entry = start + row // RQ
            is_there = (entry < end) & (head < R)
            t = tl.load(query_ptr + entry, mask=is_there, other=0)
            rows = (b * T + t) * H + g * R + head
            q = load_tile(q_ptr, rows, D, is_there, D)
            grad = load_tile(grad_ptr, rows, D, is_there, D)
            of_query = (b * H + g * R + head) * T + t
            lse = tl.load(lse_ptr + of_query, mask=is_there, other=float("inf"))
            delta = tl.load(delta_ptr + of_query, mask=is_there, other=0.0)
            score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            p = tl.where(s[None, :] <= t[:, None], tl.exp2(score - lse[:, None]), 0.0)
            dv += tl.dot(tl.trans(p.to(grad.dtype)), grad, input_precision=PRECISION)
            ds = p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION)
        if part < 0:
            store_block(dk_ptr + keys, dv_ptr + keys, owner_ptr + b * T, first, dk * factor, dv, T, G, D, L)
        else:
            rows = tl.arange(0, L)
            into = parts_ptr + (x.to(tl.int64) * parts_room + part) * 2 * L * D
            store_tile(into, rows, D, rows < L, dk * factor, D)
            store_tile(into + L * D, rows, D, rows < L, dv, D)


@triton.jit
def store_block(dk_ptr, dv_ptr, owner_ptr, first, dk, dv, T, G: tl.constexpr, D: tl.constexpr, L: tl.constexpr):
    """A block at the end of its document is shorter: the keys after it belong to the next one, which another program writes."""
    s = first + tl.arange(0, L)
    mine = tl.load(owner_ptr + s, mask=s < T, other=-1) == first
    store_tile(dk_ptr, s, G * D, mine, dk, D)
    store_tile(dv_ptr, s, G * D, mine, dv, D)


@triton.jit(do_not_specialize=["T", "room", "parts_room"])
def nsa_chosen_sum_parts_kernel(
    owner_ptr, work_ptr, count_ptr, parts_ptr, dk_ptr, dv_ptr, T, room, parts_room,
    G: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """dk and dv of the blocks that came in several parts, added in their order."""
    x = tl.program_id(1)
    b, g = (x // G).to(tl.int64), x % G
    keys = (b * T * G + g) * D
    work_ptr += x.to(tl.int64) * 5 * room
    rows = tl.arange(0, L)
    for work in range(tl.program_id(0), tl.load(count_ptr + x), tl.num_programs(0)):
        num_parts = tl.load(work_ptr + 4 * room + work)
        if num_parts > 0:
            first, part = tl.load(work_ptr + work), tl.load(work_ptr + 3 * room + work)
            dk, dv = tl.zeros([L, D], tl.float32), tl.zeros([L, D], tl.float32)
            for i in range(num_parts):
                source = parts_ptr + (x.to(tl.int64) * parts_room + part + i) * 2 * L * D
                dk += load_tile(source, rows, D, rows < L, D)
                dv += load_tile(source + L * D, rows, D, rows < L, D)
            store_block(dk_ptr + keys, dv_ptr + keys, owner_ptr + b * T, first, dk, dv, T, G, D, L)
