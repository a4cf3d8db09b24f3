# mypy: ignore-errors
"""The GPU kernel of the gradients of attention to chosen blocks of keys for Hopper, in Gluon: as gather_kernels.py has attention itself.

gather_attention.py launches it, and imports this file only where Triton is. mypy knows nothing of Gluon's language.

It computes what nsa_chosen_gradient_kernel does (chosen_kernels.py). One warp has queries fetched, and the gradients of what they found; one has
parts of dq written; four compute, in one of two ways, whichever is the faster: with heads of 64 shared memory is what they wait for,
with heads of 128 there are no registers to spare.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from paceline.recipes.nsa.kernels.gather_kernels import (
    count_blocks,
    count_work,
    load_entry,
    load_tiles,
    make_barriers,
    open_work,
    store_tiles,
)


@gluon.jit
def store_keys(
    dk, dv, dk_ptr, dv_ptr, sums_ptr, owner_ptr, pieces_ptr, piece, room, b, g, first, T,
    G: gl.constexpr, D: gl.constexpr, L: gl.constexpr, SUMS: gl.constexpr, ADDS: gl.constexpr,
):  # fmt: skip
    """What a piece of work adds to its block: into its place where that is all of it, else for `nsa_chosen_join_keys_kernel` to sum up."""
    of_block = gl.arange(0, L, layout=gl.SliceLayout(1, SUMS))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, SUMS))
    sums = gl.load(pieces_ptr + 4 * room + piece)
    if sums < 0:
        # A block at the end of its document is shorter: the keys after it belong to the next one, which another program writes.
        s = first + of_block
        mine = gl.load(owner_ptr + b * T + s, mask=s < T, other=-1) == first
        into = (((b * T + s) * G + g).to(gl.int64) * D)[:, None] + d[None, :]
        if ADDS:
            dk += gl.load(dk_ptr + into, mask=mine[:, None], other=0.0)
            dv += gl.load(dv_ptr + into, mask=mine[:, None], other=0.0)
        gl.store(dk_ptr + into, dk.to(dk_ptr.dtype.element_ty), mask=mine[:, None])
        gl.store(dv_ptr + into, dv.to(dv_ptr.dtype.element_ty), mask=mine[:, None])
    else:
        of_sums = sums_ptr + sums.to(gl.int64) * 2 * L * D + (of_block * D)[:, None] + d[None, :]
        gl.store(of_sums, dk)
        gl.store(of_sums + L * D, dv)


@gluon.jit
def load_row_sums(
    lse_ptr, delta_ptr, entry, is_query, rows, b, g, t0, T, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, RP: gl.constexpr
):  # fmt: skip
    """lse and delta of the rows of a tile."""
    is_there = is_query & (rows % RP < R)
    of_query = ((b * T + t0 + entry // N) * G + g).to(gl.int64) * R + rows % RP
    lse = gl.load(lse_ptr + of_query, mask=is_there, other=float("inf"))
    return lse, gl.load(delta_ptr + of_query, mask=is_there, other=0.0)


@gluon.jit
def stage_sums(
    sums_bufs, bars, entry_ptr, pieces_ptr, count_ptr, lse_ptr, delta_ptr, t0, Q, T, room,
    G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr,
):  # fmt: skip
    """The warp that reads what belongs to the rows of a tile besides: lse and delta."""
    ready, empty = bars[6].index(0), bars[7].index(0)
    ROWS: gl.constexpr = PER * RP
    rows = gl.arange(0, ROWS, layout=gl.BlockedLayout([ROWS // 32], [32], [1], [0]))
    turn = 0
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, b, g, _, begin, end = open_work(pieces_ptr, piece, room, G)
        of_work = entry_ptr + x.to(gl.int64) * Q * N
        entry = load_entry(of_work, begin + rows // RP, end, 0)
        for start in range(begin, end, PER):
            lse, delta = load_row_sums(
                lse_ptr, delta_ptr, entry, start + rows // RP < end, rows, b, g, t0, T, G, R, N, RP
            )
            # Where the next ones lie is asked for while these are on their way.
            entry = load_entry(of_work, start + PER + rows // RP, end, 0)
            mbarrier.wait(empty, (turn & 1) ^ 1)
            sums_bufs.index(0).store(lse)
            sums_bufs.index(1).store(delta)
            mbarrier.arrive(ready, count=1)
            turn += 1


@gluon.jit
def differentiate_by_keys(
    q_mma, grad_mma, k_mma, v_mma, half_mma, sums_bufs, bars, owner_ptr, entry_ptr, pieces_ptr, count_ptr, dk_ptr, dv_ptr, sums_ptr,
    t0, Q, T, room, scale, factor,
    G: gl.constexpr, D: gl.constexpr, N: gl.constexpr, L: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr, NBUF: gl.constexpr,
    ADDS: gl.constexpr,
):  # fmt: skip
    """The warps that compute, for heads of 64: parts of dq; and dk and dv of a block, or a sum over some of its queries.

    Keys are the rows of the scores: so a block's keys and values stay in registers, and what their gradients are products of, too. Only ds,
    for those of the queries, goes through shared memory, which is what these warps wait for most. Heads of 128 would not fit.
    """
    ready, empty, block_ready, block_empty, out_ready, out_empty, sums_ready, sums_empty = bars
    ROWS: gl.constexpr = PER * RP
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    OF_ROWS: gl.constexpr = gl.SliceLayout(0, SCORES)
    keys = gl.arange(0, L, layout=gl.SliceLayout(1, SCORES))
    rows = gl.arange(0, ROWS, layout=OF_ROWS)
    out_buf, ds_buf = half_mma.index(0), half_mma.index(1)
    turn = 0
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        dk = gl.zeros([L, D], gl.float32, SUMS)
        dv = gl.zeros([L, D], gl.float32, SUMS)
        mbarrier.wait(block_ready.index(0), count_blocks(piece) & 1)
        k = k_mma.index(0).load(gl.DotOperandLayout(0, SCORES, 2))
        v = v_mma.index(0).load(gl.DotOperandLayout(0, SCORES, 2))
        for start in range(begin, end, PER):
            buf = turn % NBUF
            mbarrier.wait(ready.index(buf), (turn // NBUF) & 1)
            q, grad = q_mma.index(buf), grad_mma.index(buf)
            none = gl.zeros([L, ROWS], gl.float32, SCORES)
            score = warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)
            dp = warpgroup_mma(v, grad.permute((1, 0)), none, use_acc=False, is_async=True)
            mbarrier.wait(sums_ready.index(0), turn & 1)
            lse = sums_bufs.index(0).load(OF_ROWS)
            score = warpgroup_mma_wait(1, deps=(score,))
            p = gl.exp2(score * scale - lse[None, :])
            # Its own queries come first: the rest lie behind it, and see all of it.
            if start < begin + L:
                entry = load_entry(entry_ptr + x.to(gl.int64) * Q * N, start + rows // RP, end, 0)
                p = gl.where(keys[:, None] <= (t0 + entry // N - first)[None, :], p, 0.0)
            # Once both are read, those of the next tile may take their place.
            delta = sums_bufs.index(1).load(OF_ROWS)
            mbarrier.arrive(sums_empty.index(0), count=1)
            dp = warpgroup_mma_wait(0, deps=(dp,))
            narrow_p = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, SUMS, 2))
            dv = warpgroup_mma(narrow_p, grad, dv, is_async=True)
            ds = (p * (dp - delta[None, :])).to(q.dtype)
            ds_buf.store(ds)
            fence_async_shared()
            dk = warpgroup_mma(gl.convert_layout(ds, gl.DotOperandLayout(0, SUMS, 2)), q, dk, is_async=True)
            dq = warpgroup_mma(
                ds_buf.permute((1, 0)),
                k_mma.index(0),
                gl.zeros([ROWS, D], gl.float32, SUMS),
                use_acc=False,
                is_async=True,
            )
            dv, dk, dq = warpgroup_mma_wait(0, deps=(dv, dk, dq))
            mbarrier.arrive(empty.index(buf), count=1)
            mbarrier.wait(out_empty.index(0), (turn & 1) ^ 1)
            out_buf.store(dq.to(q.dtype))
            fence_async_shared()
            mbarrier.arrive(out_ready.index(0), count=1)
            turn += 1
        # Before others are copied there: some of the block was read as ordinary memory.
        fence_async_shared()
        mbarrier.arrive(block_empty.index(0), count=1)
        store_keys(
            dk * factor, dv, dk_ptr, dv_ptr, sums_ptr, owner_ptr, pieces_ptr, piece, room, b, g, first, T, G, D, L, SUMS, ADDS
        )  # fmt: skip


@gluon.jit
def differentiate_by_queries(
    q_mma, grad_mma, k_bufs, k_mma, v_mma, half_mma, bars, owner_ptr, entry_ptr, pieces_ptr, count_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    sums_ptr, t0, Q, T, room, scale, factor,
    G: gl.constexpr, R: gl.constexpr, D: gl.constexpr, N: gl.constexpr, L: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr,
    NBUF: gl.constexpr, ADDS: gl.constexpr,
):  # fmt: skip
    """The same for heads of 128, of which sums alone fill the registers: queries are the rows of the scores, and p and ds go through shared
    memory.
    """
    ready, empty, block_ready, block_empty, out_ready, out_empty = bars[0], bars[1], bars[2], bars[3], bars[4], bars[5]
    ROWS: gl.constexpr = PER * RP
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, L, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, 64, 16])
    HALVES: gl.constexpr = D // 64
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    keys = gl.arange(0, L, layout=gl.SliceLayout(0, SCORES))
    k, v = k_mma.index(0), v_mma.index(0)
    p_buf, ds_buf = half_mma.index(0), half_mma.index(1)
    turn = 0
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        of_work = x.to(gl.int64) * Q * N
        dk = gl.zeros([L, D], gl.float32, SUMS)
        dv = gl.zeros([L, D], gl.float32, SUMS)
        mbarrier.wait(block_ready.index(0), count_blocks(piece) & 1)
        # What belongs to a query is asked for one tile ahead, and where it lies, two.
        entry = load_entry(entry_ptr + of_work, begin + rows // RP, end, 0)
        ahead = load_entry(entry_ptr + of_work, begin + PER + rows // RP, end, 0)
        lse, delta = load_row_sums(lse_ptr, delta_ptr, entry, begin + rows // RP < end, rows, b, g, t0, T, G, R, N, RP)
        for start in range(begin, end, PER):
            buf = turn % NBUF
            t = t0 + entry // N
            next_lse, next_delta = load_row_sums(
                lse_ptr, delta_ptr, ahead, start + PER + rows // RP < end, rows, b, g, t0, T, G, R, N, RP
            )
            entry = ahead
            ahead = load_entry(entry_ptr + of_work, start + 2 * PER + rows // RP, end, 0)
            mbarrier.wait(ready.index(buf), (turn // NBUF) & 1)
            q, grad = q_mma.index(buf), grad_mma.index(buf)
            none = gl.zeros([ROWS, L], gl.float32, SCORES)
            score = warpgroup_mma(q, k.permute((1, 0)), none, use_acc=False, is_async=True)
            dp = warpgroup_mma(grad, v.permute((1, 0)), none, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(1, deps=(score,))
            p = gl.exp2(score * scale - lse[:, None])
            if start < begin + L:
                p = gl.where(keys[None, :] <= (t - first)[:, None], p, 0.0)
            # What was found last lies where p and ds come to lie, until it is written.
            mbarrier.wait(out_empty.index(0), (turn & 1) ^ 1)
            p_buf.store(p.to(q.dtype))
            fence_async_shared()
            dp = warpgroup_mma_wait(0, deps=(dp,))
            dv = warpgroup_mma(p_buf.permute((1, 0)), grad, dv, is_async=True)
            ds = (p * (dp - delta[:, None])).to(q.dtype)
            ds_buf.store(ds)
            fence_async_shared()
            dk = warpgroup_mma(ds_buf.permute((1, 0)), q, dk, is_async=True)
            narrow = gl.convert_layout(ds, gl.DotOperandLayout(0, HALF, 2))
            # Half a head at a time: all of it would not fit into registers beside dk and dv.
            for c in gl.static_range(HALVES):
                dq = warpgroup_mma(
                    narrow, k_bufs.index(c), gl.zeros([ROWS, 64], gl.float32, HALF), use_acc=False, is_async=True
                )
                if c == 0:
                    dv, dk, dq = warpgroup_mma_wait(0, deps=(dv, dk, dq))
                    mbarrier.arrive(empty.index(buf), count=1)
                else:
                    dq = warpgroup_mma_wait(0, deps=(dq,))
                half_mma.index(c).store(dq.to(q.dtype))
            fence_async_shared()
            mbarrier.arrive(out_ready.index(0), count=1)
            lse, delta = next_lse, next_delta
            turn += 1
        mbarrier.arrive(block_empty.index(0), count=1)
        store_keys(
            dk * factor, dv, dk_ptr, dv_ptr, sums_ptr, owner_ptr, pieces_ptr, piece, room, b, g, first, T, G, D, L, SUMS, ADDS
        )  # fmt: skip


@gluon.jit(do_not_specialize=["t0", "Q", "T", "room"])
def nsa_chosen_gather_gradient_kernel(
    q_desc, grad_desc, k_desc, v_desc, parts_desc, owner_ptr, entry_ptr, pieces_ptr, count_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, sums_ptr,
    t0, Q, T, room, scale, factor,
    H: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N: gl.constexpr, L: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr,
    NBUF: gl.constexpr, ADDS: gl.constexpr,
):  # fmt: skip
    """Parts of dq; and dk and dv of one block after another where all of its queries are one piece of work, where not, a sum for
    `nsa_chosen_join_keys_kernel`.
    """
    R: gl.constexpr = H // G
    HALVES: gl.constexpr = D // 64
    ROWS: gl.constexpr = PER * RP
    dtype: gl.constexpr = q_desc.dtype
    q_bufs = gl.allocate_shared_memory(dtype, [NBUF * HALVES * PER, 1, RP, 64], q_desc.layout)
    grad_bufs = gl.allocate_shared_memory(dtype, [NBUF * HALVES * PER, 1, RP, 64], q_desc.layout)
    # Of heads of 64 dq and ds, of 128 p and ds and then, in their place, dq.
    out_bufs = gl.allocate_shared_memory(dtype, [2 * PER, 1, RP, 64], parts_desc.layout)
    k_bufs = gl.allocate_shared_memory(dtype, [HALVES, L, 64], k_desc.layout)
    v_bufs = gl.allocate_shared_memory(dtype, [HALVES, L, 64], v_desc.layout)
    bars = (
        make_barriers(NBUF), make_barriers(NBUF), make_barriers(1), make_barriers(1), make_barriers(1), make_barriers(1),
        make_barriers(1), make_barriers(1)
    )  # fmt: skip
    q_mma = q_bufs._reinterpret(dtype, [NBUF, ROWS, D], k_desc.layout)
    grad_mma = grad_bufs._reinterpret(dtype, [NBUF, ROWS, D], k_desc.layout)
    k_mma = k_bufs._reinterpret(dtype, [1, L, D], k_desc.layout)
    v_mma = v_bufs._reinterpret(dtype, [1, L, D], k_desc.layout)
    half_mma = out_bufs._reinterpret(dtype, [2, ROWS, 64], k_desc.layout)
    if D == 64:
        sums_bufs = gl.allocate_shared_memory(gl.float32, [2, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        gl.warp_specialize(
            [
                (
                    differentiate_by_keys,
                    (
                        q_mma, grad_mma, k_mma, v_mma, half_mma, sums_bufs, bars, owner_ptr, entry_ptr, pieces_ptr, count_ptr, dk_ptr, dv_ptr,
                        sums_ptr, t0, Q, T, room, scale, factor, G, D, N, L, PER, RP, NBUF, ADDS,
                    ),
                ),
                (
                    load_tiles,
                    (
                        q_desc, grad_desc, k_desc, v_desc, q_bufs, grad_bufs, k_bufs, v_bufs, bars, entry_ptr, pieces_ptr, count_ptr,
                        t0, Q, T, room, G, D, N, L, PER, RP, NBUF, True,
                    ),
                ),
                (store_tiles, (parts_desc, out_bufs, bars, entry_ptr, pieces_ptr, count_ptr, Q, room, G, D, N, PER, 1)),
                (
                    stage_sums,
                    (sums_bufs, bars, entry_ptr, pieces_ptr, count_ptr, lse_ptr, delta_ptr, t0, Q, T, room, G, R, N, PER, RP),
                ),
            ],
            [1, 1, 1],
            [24, 24, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    differentiate_by_queries,
                    (
                        q_mma, grad_mma, k_bufs, k_mma, v_mma, half_mma, bars, owner_ptr, entry_ptr, pieces_ptr, count_ptr, lse_ptr, delta_ptr,
                        dk_ptr, dv_ptr, sums_ptr, t0, Q, T, room, scale, factor, G, R, D, N, L, PER, RP, NBUF, ADDS,
                    ),
                ),
                (
                    load_tiles,
                    (
                        q_desc, grad_desc, k_desc, v_desc, q_bufs, grad_bufs, k_bufs, v_bufs, bars, entry_ptr, pieces_ptr, count_ptr,
                        t0, Q, T, room, G, D, N, L, PER, RP, NBUF, True,
                    ),
                ),
                (store_tiles, (parts_desc, out_bufs, bars, entry_ptr, pieces_ptr, count_ptr, Q, room, G, D, N, PER, 1)),
            ],
            [1, 1],
            [24, 24],
        )  # fmt: skip
