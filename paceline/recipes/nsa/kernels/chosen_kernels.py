# mypy: ignore-errors
"""The GPU kernels of attention to chosen blocks of keys, in Triton: a block, and the queries that chose it.

chosen_attention.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

A query and all heads of its group read the same n blocks, and a block is read by about as many queries as it has keys × n, here and there
in the row. So a program keeps a block's keys and values, gathers its queries, ROWS // R of them with all R heads to a tile, and writes for
each what it found: a part. What a query reads is put together from its n parts by a second kernel; of the gradients, those of the
keys are summed while they are kept, and those of queries come in parts. Nothing by atomics: the same input gives the same bits.

q_BTHD, out_BTHD, k_BTGD, v_BTGD, chosen_XQn: the first key of each block, -1 for none; a query sees the keys of a block up to itself.
lse_BTH in base 2, delta_BTH. X: rows and groups b · G + g. Q: some queries, from t0 on. entry_XE, E = Q · n: chosen_XQn's places, sorted by block, in
64 bits where places in parts_ERD need them. parts_XERD, parts_lse_XER.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.kernels.tile_kernels import load_tile, store_tile


@triton.jit
def open_work(pieces_ptr, piece, room, G: tl.constexpr):
    """A piece of work: which of the rows and groups; b and g; the block's first key, from and to."""
    x, first = tl.load(pieces_ptr + piece).to(tl.int64), tl.load(pieces_ptr + room + piece)
    begin, end = tl.load(pieces_ptr + 2 * room + piece), tl.load(pieces_ptr + 3 * room + piece)
    return x, x // G, x % G, first, begin, end


@triton.jit
def open_tile(entry_ptr, start, end, t0, T, N: tl.constexpr, H: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr):
    """Of the queries from `start` on: which rows of a tile are there, t, places in parts_ERD, and rows of q_THD from the group's first head on."""
    row = tl.arange(0, ROWS)
    index = start + row // R
    is_there = (index < end) & (row < ROWS // R * R)
    entry = tl.load(entry_ptr + index, mask=is_there, other=0)
    # A row that is not there sees everything, so that its softmax is a number.
    t = tl.where(is_there, t0 + entry // N, T)
    return is_there, t, entry * R + row % R, t * H + row % R


@triton.jit(do_not_specialize=["t0", "Q", "T", "room"])
def nsa_chosen_forward_kernel(
    q_ptr, k_ptr, v_ptr, entry_ptr, pieces_ptr, count_ptr, parts_ptr, parts_lse_ptr, t0, Q, T, room, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What queries read in one block each: a program takes one piece of work after another, a block and some of its queries."""
    R: tl.constexpr = H // G
    for piece in range(tl.program_id(0), tl.load(count_ptr).to(tl.int32), tl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        s = first + tl.arange(0, L)
        offset, of_block = ((b * T + first) * G + g) * D, tl.arange(0, L)
        k = load_tile(k_ptr + offset, of_block, G * D, s < T, D)
        v = load_tile(v_ptr + offset, of_block, G * D, s < T, D)
        of_row, of_work = b * T * H + g * R, x * Q * N
        # Its own queries come first: the rest lie behind it, and see all of it.
        PER: tl.constexpr = ROWS // R
        own = tl.minimum(begin + (L + PER - 1) // PER * PER, end)
        for start in range(begin, own, PER):
            read_block(
                q_ptr + of_row * D, k, v, entry_ptr + of_work, parts_ptr + of_work * R * D, parts_lse_ptr + of_work * R, s, start, end, t0, T,
                scale, H, R, D, N, ROWS, False, PRECISION,
            )  # fmt: skip
        for start in range(own, end, PER):
            read_block(
                q_ptr + of_row * D, k, v, entry_ptr + of_work, parts_ptr + of_work * R * D, parts_lse_ptr + of_work * R, s, start, end, t0, T,
                scale, H, R, D, N, ROWS, True, PRECISION,
            )  # fmt: skip


@triton.jit
def read_block(
    q_ptr, k, v, entry_ptr, parts_ptr, parts_lse_ptr, s, start, end, t0, T, scale,
    H: tl.constexpr, R: tl.constexpr, D: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, IS_WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one tile of queries finds in a block, all of which lies before them or not."""
    is_there, t, part, row = open_tile(entry_ptr, start, end, t0, T, N, H, R, ROWS)
    q = load_tile(q_ptr, row, D, is_there, D)
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if not IS_WHOLE:
        score = tl.where(s[None, :] <= t[:, None], score, float("-inf"))
    most = tl.max(score, 1) * scale
    p = tl.exp2(score * scale - most[:, None])
    total = tl.sum(p, 1)
    out = tl.dot(p.to(v.dtype), v, input_precision=PRECISION) * (1 / total)[:, None]
    store_tile(parts_ptr, part, D, is_there, out, D)
    tl.store(parts_lse_ptr + part, most + tl.log2(total), mask=is_there)


@triton.jit
def open_sum(chosen_ptr, t0, Q, T, H: tl.constexpr, G: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr):
    """Of ROWS heads of queries: which there are, rows of q_BTHD, places of their first parts in parts_XERD, and their blocks."""
    R: tl.constexpr = H // G
    x = tl.program_id(1).to(tl.int64)
    b, g = x // G, x % G
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    t, head = row // R, row % R
    return t < Q, (b * T + t0 + t) * H + g * R + head, (x * Q + t) * N * R + head, chosen_ptr + (x * Q + t) * N


@triton.jit
def load_part_lse(parts_lse_ptr, chosen_ptr, part, i, is_there, R: tl.constexpr):
    """Of the i-th blocks of some queries; -inf where there is none, or no query."""
    is_part = is_there & (tl.load(chosen_ptr + i, mask=is_there, other=-1) >= 0)
    return tl.load(parts_lse_ptr + part + i * R, mask=is_part, other=float("-inf"))


@triton.jit(do_not_specialize=["t0", "Q", "T"])
def nsa_chosen_join_kernel(
    parts_ptr, parts_lse_ptr, chosen_ptr, out_ptr, lse_ptr, t0, Q, T,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out and lse of some queries, from their parts."""
    R: tl.constexpr = H // G
    is_there, rows, part, chosen_ptr = open_sum(chosen_ptr, t0, Q, T, H, G, N, ROWS)
    # A query chooses its own block at least: so `most` becomes a number, but for rows that are not queries.
    most = tl.where(is_there, float("-inf"), 0.0)
    total = tl.zeros([ROWS], tl.float32)
    for i in range(N):
        lse = load_part_lse(parts_lse_ptr, chosen_ptr, part, i, is_there, R)
        larger = tl.maximum(most, lse)
        total = total * tl.exp2(most - larger) + tl.exp2(lse - larger)
        most = larger
    lse_of_all = most + tl.log2(total)
    # The weights are known by now: so no part has to wait for the one before it.
    out = tl.zeros([ROWS, D], tl.float32)
    for i in range(N):
        lse = load_part_lse(parts_lse_ptr, chosen_ptr, part, i, is_there, R)
        weight = tl.exp2(lse - lse_of_all)
        out += weight[:, None] * load_tile(parts_ptr, part + i * R, D, weight > 0, D)
    store_tile(out_ptr, rows, D, is_there, out, D)
    tl.store(lse_ptr + rows, lse_of_all, mask=is_there)


@triton.jit(do_not_specialize=["t0", "Q", "T"])
def nsa_chosen_sum_kernel(
    parts_ptr, chosen_ptr, dq_ptr, t0, Q, T, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dq of some queries: the sum of their parts."""
    R: tl.constexpr = H // G
    is_there, rows, part, chosen_ptr = open_sum(chosen_ptr, t0, Q, T, H, G, N, ROWS)
    dq = tl.zeros([ROWS, D], tl.float32)
    for i in range(N):
        is_part = is_there & (tl.load(chosen_ptr + i, mask=is_there, other=-1) >= 0)
        dq += load_tile(parts_ptr, part + i * R, D, is_part, D)
    store_tile(dq_ptr, rows, D, is_there, dq * factor, D)


@triton.jit(do_not_specialize=["t0", "Q", "T", "room"])
def nsa_chosen_gradient_kernel(
    q_ptr, k_ptr, v_ptr, owner_ptr, entry_ptr, pieces_ptr, count_ptr, lse_ptr, delta_ptr, grad_ptr, parts_ptr, dk_ptr, dv_ptr, sums_ptr,
    t0, Q, T, room, scale, factor,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
    ADDS: tl.constexpr, KEYS_FIRST: tl.constexpr = False,
):  # fmt: skip
    """Parts of dq; and dk and dv of one block after another where all of its queries are one piece of work, where not, a sum for
    `nsa_chosen_join_keys_kernel`. KEYS_FIRST: keys are the rows of the scores, else queries, whichever is the faster.
    """
    R: tl.constexpr = H // G
    for piece in range(tl.program_id(0), tl.load(count_ptr).to(tl.int32), tl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        s = first + tl.arange(0, L)
        offset, of_block = ((b * T + first) * G + g) * D, tl.arange(0, L)
        k = load_tile(k_ptr + offset, of_block, G * D, s < T, D)
        v = load_tile(v_ptr + offset, of_block, G * D, s < T, D)
        of_row, of_work = b * T * H + g * R, x * Q * N
        dk, dv = tl.zeros([L, D], tl.float32), tl.zeros([L, D], tl.float32)
        for start in range(begin, end, ROWS // R):
            is_there, t, part, row = open_tile(entry_ptr + of_work, start, end, t0, T, N, H, R, ROWS)
            q = load_tile(q_ptr + of_row * D, row, D, is_there, D)
            grad = load_tile(grad_ptr + of_row * D, row, D, is_there, D)
            lse = tl.load(lse_ptr + of_row + row, mask=is_there, other=float("inf"))
            delta = tl.load(delta_ptr + of_row + row, mask=is_there, other=0.0)
            if KEYS_FIRST:
                p = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale - lse[None, :])
                p = tl.where(s[:, None] <= t[None, :], p, 0.0)
                dv = tl.dot(p.to(grad.dtype), grad, dv, input_precision=PRECISION)
                ds = (p * (tl.dot(v, tl.trans(grad), input_precision=PRECISION) - delta[None, :])).to(q.dtype)
                dk = tl.dot(ds, q, dk, input_precision=PRECISION)
                dq = tl.trans(tl.dot(tl.trans(k), ds, input_precision=PRECISION))
            else:
                p = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - lse[:, None])
                p = tl.where(s[None, :] <= t[:, None], p, 0.0)
                dv = tl.dot(tl.trans(p.to(grad.dtype)), grad, dv, input_precision=PRECISION)
                ds = (p * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None])).to(q.dtype)
                dk = tl.dot(tl.trans(ds), q, dk, input_precision=PRECISION)
                dq = tl.dot(ds, k, input_precision=PRECISION)
            store_tile(parts_ptr + of_work * R * D, part, D, is_there, dq, D)
        sums = tl.load(pieces_ptr + 4 * room + piece)
        if sums < 0:
            store_block(
                dk_ptr + offset, dv_ptr + offset, owner_ptr + b * T, first, of_block, dk * factor, dv, T, G, D, ADDS
            )
        else:
            into = sums_ptr + sums.to(tl.int64) * 2 * L * D
            store_tile(into, of_block, D, of_block < L, dk * factor, D)
            store_tile(into + L * D, of_block, D, of_block < L, dv, D)


@triton.jit
def store_block(
    dk_ptr, dv_ptr, owner_ptr, first, rows, dk, dv, T, G: tl.constexpr, D: tl.constexpr, ADDS: tl.constexpr
):
    """Some rows of a block, in place of what is there or added to it. At the end of its document it is shorter: the keys after it belong to the
    next one, which another program writes."""
    s = first + rows
    mine = tl.load(owner_ptr + s, mask=s < T, other=-1) == first
    if ADDS:
        dk += load_tile(dk_ptr, rows, G * D, mine, D)
        dv += load_tile(dv_ptr, rows, G * D, mine, D)
    store_tile(dk_ptr, rows, G * D, mine, dk, D)
    store_tile(dv_ptr, rows, G * D, mine, dv, D)


@triton.jit(do_not_specialize=["T", "room"])
def nsa_chosen_join_keys_kernel(
    owner_ptr, pieces_ptr, count_ptr, sums_ptr, dk_ptr, dv_ptr, T, room,
    G: tl.constexpr, D: tl.constexpr, L: tl.constexpr, SIZE: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """dk and dv of the blocks that came in several pieces, added in their order; SIZE of their keys a program."""
    rows = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    for piece in range(tl.program_id(0), tl.load(count_ptr).to(tl.int32), tl.num_programs(0)):
        num_pieces = tl.load(pieces_ptr + 5 * room + piece)
        if num_pieces > 0:
            _, b, g, first, _, _ = open_work(pieces_ptr, piece, room, G)
            source = sums_ptr + tl.load(pieces_ptr + 4 * room + piece).to(tl.int64) * 2 * L * D
            dk, dv = tl.zeros([SIZE, D], tl.float32), tl.zeros([SIZE, D], tl.float32)
            for i in range(num_pieces):
                dk += load_tile(source + i * 2 * L * D, rows, D, rows < L, D)
                dv += load_tile(source + i * 2 * L * D + L * D, rows, D, rows < L, D)
            offset = ((b * T + first) * G + g) * D
            store_block(dk_ptr + offset, dv_ptr + offset, owner_ptr + b * T, first, rows, dk, dv, T, G, D, ADDS)
