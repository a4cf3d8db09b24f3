# mypy: ignore-errors
"""The GPU kernels of attention to chosen blocks of keys for Hopper's matrix units and copy engine, in Gluon, the layer beneath Triton.

gather_attention.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Gluon's language.

They compute what nsa_chosen_forward_kernel and nsa_chosen_gradient_kernel do (chosen_kernels.py, whose names and shapes are these), a block
and the queries that chose it. There every thread works out addresses, waits for what it gathers and writes it; here a warp of its own has the
copy engine fetch queries, all heads of a group at a time, some tiles ahead, another one has it write what was found, and four warps do
nothing but compute. The R heads of a query take RP rows of a tile, 8 or 16: what there is no head for is read as zeros and written nowhere.
A tile is PER queries; NBUF of them are fetched ahead. Tiles lie in shared memory as the matrix units want them, 64 numbers wide: HALVES of a head.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

NOWHERE = gl.constexpr(2**30)
"""a place beyond all parts: what is written there is dropped"""


@gluon.jit
def open_work(pieces_ptr, piece, room, G: gl.constexpr):
    """A piece of work: which of the rows and groups; b and g; the block's first key, from and to."""
    x, first = gl.load(pieces_ptr + piece), gl.load(pieces_ptr + room + piece)
    begin, end = gl.load(pieces_ptr + 2 * room + piece), gl.load(pieces_ptr + 3 * room + piece)
    return x, x // G, x % G, first, begin, end


@gluon.jit
def count_work(count_ptr):
    return gl.load(count_ptr).to(gl.int32)


@gluon.jit
def load_entry(entry_ptr, index, end, absent):
    """A query's place t · n + i; behind the last one, `absent`."""
    return gl.load(entry_ptr + index, mask=index < end, other=absent).to(gl.int32)


@gluon.jit
def load_entries(entry_ptr, start, end, absent, PER: gl.constexpr):
    """Those of a tile, one by one; all of them are on their way before the first is waited for."""
    entries = ()
    for i in gl.static_range(PER):
        entries = entries + (load_entry(entry_ptr, start + i, end, absent),)
    return entries


@gluon.jit
def make_barriers(count: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(count):
        mbarrier.init(bars.index(i), count=1)
    return bars


@gluon.jit
def load_block(desc, bufs, bar, row, column, HALVES: gl.constexpr):
    for c in gl.static_range(HALVES):
        tma.async_copy_global_to_shared(desc, [row, column + 64 * c], bar, bufs.index(c))


@gluon.jit
def load_tiles(
    q_desc, grad_desc, k_desc, v_desc, q_bufs, grad_bufs, k_bufs, v_bufs, bars, entry_ptr, pieces_ptr, count_ptr, t0, Q, T, room,
    G: gl.constexpr, D: gl.constexpr, N: gl.constexpr, L: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr, NBUF: gl.constexpr,
    WITH_GRAD: gl.constexpr,
):  # fmt: skip
    """The warp that has everything fetched: the keys and values of a block, then its queries (and the gradients of what they found)."""
    ready, empty, block_ready, block_empty = bars[0], bars[1], bars[2], bars[3]
    HALVES: gl.constexpr = D // 64
    BYTES: gl.constexpr = PER * RP * D * 2 * (2 if WITH_GRAD else 1)
    turn = 0
    blocks = 0
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        mbarrier.wait(block_empty.index(0), (blocks & 1) ^ 1)
        mbarrier.expect(block_ready.index(0), 2 * L * D * 2)
        load_block(k_desc, k_bufs, block_ready.index(0), b * T + first, g * D, HALVES)
        load_block(v_desc, v_bufs, block_ready.index(0), b * T + first, g * D, HALVES)
        of_work = entry_ptr + x.to(gl.int64) * Q * N
        # Behind the last query any other will do: nothing of it is kept.
        entries = load_entries(of_work, begin, end, 0, PER)
        for start in range(begin, end, PER):
            buf = turn % NBUF
            ahead = load_entries(of_work, start + PER, end, 0, PER)
            mbarrier.wait(empty.index(buf), ((turn // NBUF) & 1) ^ 1)
            mbarrier.expect(ready.index(buf), BYTES)
            for i in gl.static_range(PER):
                row = (b * T + t0 + entries[i] // N) * G + g
                for c in gl.static_range(HALVES):
                    into = (buf * HALVES + c) * PER + i
                    tma.async_copy_global_to_shared(q_desc, [row, 0, 64 * c], ready.index(buf), q_bufs.index(into))
                    if WITH_GRAD:
                        tma.async_copy_global_to_shared(
                            grad_desc, [row, 0, 64 * c], ready.index(buf), grad_bufs.index(into)
                        )
            entries = ahead
            turn += 1
        blocks += 1


@gluon.jit
def store_tiles(
    parts_desc, out_bufs, bars, entry_ptr, pieces_ptr, count_ptr, t0, Q, T, room,
    G: gl.constexpr, D: gl.constexpr, N: gl.constexpr, PER: gl.constexpr, NOUT: gl.constexpr,
):  # fmt: skip
    """The warp that has everything written: what each query of a tile found, to its place among the parts."""
    ready, empty = bars[4], bars[5]
    HALVES: gl.constexpr = D // 64
    turn = 0
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, _, _, _, begin, end = open_work(pieces_ptr, piece, room, G)
        for start in range(begin, end, PER):
            buf = turn % NOUT
            entries = load_entries(entry_ptr + x.to(gl.int64) * Q * N, start, end, NOWHERE, PER)
            mbarrier.wait(ready.index(buf), (turn // NOUT) & 1)
            for i in gl.static_range(PER):
                for c in gl.static_range(HALVES):
                    tma.async_copy_shared_to_global(
                        parts_desc, [x * Q * N + entries[i], 0, 64 * c], out_bufs.index((buf * HALVES + c) * PER + i)
                    )
            tma.store_wait(0)
            mbarrier.arrive(empty.index(buf), count=1)
            turn += 1


@gluon.jit
def read_blocks(
    q_mma, k_mma, v_mma, out_mma, bars, entry_ptr, pieces_ptr, count_ptr, parts_lse_ptr, t0, Q, T, room, scale,
    G: gl.constexpr, R: gl.constexpr, D: gl.constexpr, N: gl.constexpr, L: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr,
    NBUF: gl.constexpr, NOUT: gl.constexpr,
):  # fmt: skip
    """The warps that compute: what each query of a tile reads in the block."""
    ready, empty, block_ready, block_empty, out_ready, out_empty = bars
    ROWS: gl.constexpr = PER * RP
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, L, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    keys = gl.arange(0, L, layout=gl.SliceLayout(0, SCORES))
    k, v = k_mma.index(0), v_mma.index(0)
    turn = 0
    blocks = 0
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        of_work = x.to(gl.int64) * Q * N
        mbarrier.wait(block_ready.index(0), blocks & 1)
        for start in range(begin, end, PER):
            buf = turn % NBUF
            index = start + rows // RP
            entry = load_entry(entry_ptr + of_work, index, end, 0)
            mbarrier.wait(ready.index(buf), (turn // NBUF) & 1)
            score = warpgroup_mma(
                q_mma.index(buf), k.permute((1, 0)), gl.zeros([ROWS, L], gl.float32, SCORES), use_acc=False
            )
            mbarrier.arrive(empty.index(buf), count=1)
            # Its own queries come first: the rest lie behind it, and see all of it.
            if start < begin + L:
                sees = keys[None, :] <= (t0 + entry // N - first)[:, None]
                score = gl.where(sees | (index >= end)[:, None], score, float("-inf"))
            most = gl.max(score, 1) * scale
            p = gl.exp2(score * scale - most[:, None])
            total = gl.sum(p, 1)
            out = warpgroup_mma(
                gl.convert_layout(p.to(v.dtype), gl.DotOperandLayout(0, SUMS, 2)),
                v,
                gl.zeros([ROWS, D], gl.float32, SUMS),
                use_acc=False,
            )
            out = out * gl.convert_layout(1 / total, gl.SliceLayout(1, SUMS))[:, None]
            at = turn % NOUT
            mbarrier.wait(out_empty.index(at), ((turn // NOUT) & 1) ^ 1)
            out_mma.index(at).store(out.to(v.dtype))
            fence_async_shared()
            mbarrier.arrive(out_ready.index(at), count=1)
            gl.store(
                parts_lse_ptr + (of_work + entry) * R + rows % RP,
                most + gl.log2(total),
                mask=(index < end) & (rows % RP < R),
            )
            turn += 1
        mbarrier.arrive(block_empty.index(0), count=1)
        blocks += 1


@gluon.jit(do_not_specialize=["t0", "Q", "T", "room"])
def nsa_chosen_gather_forward_kernel(
    q_desc, k_desc, v_desc, parts_desc, entry_ptr, pieces_ptr, count_ptr, parts_lse_ptr, t0, Q, T, room, scale,
    H: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N: gl.constexpr, L: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr,
    NBUF: gl.constexpr, NOUT: gl.constexpr,
):  # fmt: skip
    """What queries read in one block each: a program takes one piece of work after another, a block and some of its queries."""
    R: gl.constexpr = H // G
    HALVES: gl.constexpr = D // 64
    ROWS: gl.constexpr = PER * RP
    dtype: gl.constexpr = q_desc.dtype
    q_bufs = gl.allocate_shared_memory(dtype, [NBUF * HALVES * PER, 1, RP, 64], q_desc.layout)
    out_bufs = gl.allocate_shared_memory(dtype, [NOUT * HALVES * PER, 1, RP, 64], parts_desc.layout)
    k_bufs = gl.allocate_shared_memory(dtype, [HALVES, L, 64], k_desc.layout)
    v_bufs = gl.allocate_shared_memory(dtype, [HALVES, L, 64], v_desc.layout)
    bars = (
        make_barriers(NBUF), make_barriers(NBUF), make_barriers(1), make_barriers(1), make_barriers(NOUT), make_barriers(NOUT)
    )  # fmt: skip
    q_mma = q_bufs._reinterpret(dtype, [NBUF, ROWS, D], k_desc.layout)
    out_mma = out_bufs._reinterpret(dtype, [NOUT, ROWS, D], k_desc.layout)
    k_mma = k_bufs._reinterpret(dtype, [1, L, D], k_desc.layout)
    v_mma = v_bufs._reinterpret(dtype, [1, L, D], k_desc.layout)
    gl.warp_specialize(
        [
            (
                read_blocks,
                (
                    q_mma, k_mma, v_mma, out_mma, bars, entry_ptr, pieces_ptr, count_ptr, parts_lse_ptr, t0, Q, T, room, scale,
                    G, R, D, N, L, PER, RP, NBUF, NOUT,
                ),
            ),
            (
                load_tiles,
                (
                    q_desc, q_desc, k_desc, v_desc, q_bufs, q_bufs, k_bufs, v_bufs, bars, entry_ptr, pieces_ptr, count_ptr, t0, Q, T, room,
                    G, D, N, L, PER, RP, NBUF, False,
                ),
            ),
            (
                store_tiles,
                (parts_desc, out_bufs, bars, entry_ptr, pieces_ptr, count_ptr, t0, Q, T, room, G, D, N, PER, NOUT),
            ),
        ],
        [1, 1],
        [24, 24],
    )  # fmt: skip


@gluon.jit
def load_sums(
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
            is_there = (start + rows // RP < end) & (rows % RP < R)
            of_query = ((b * T + t0 + entry // N) * G + g).to(gl.int64) * R + rows % RP
            lse = gl.load(lse_ptr + of_query, mask=is_there, other=float("inf"))
            delta = gl.load(delta_ptr + of_query, mask=is_there, other=0.0)
            # Where the next ones lie is asked for while these are on their way.
            entry = load_entry(of_work, start + PER + rows // RP, end, 0)
            mbarrier.wait(empty, (turn & 1) ^ 1)
            sums_bufs.index(0).store(lse)
            sums_bufs.index(1).store(delta)
            mbarrier.arrive(ready, count=1)
            turn += 1


@gluon.jit
def differentiate_blocks(
    q_mma, grad_mma, k_mma, v_mma, ds_mma, out_mma, sums_bufs, bars, owner_ptr, entry_ptr, pieces_ptr, count_ptr, dk_ptr, dv_ptr, sums_ptr,
    t0, Q, T, room, scale, factor,
    G: gl.constexpr, D: gl.constexpr, N: gl.constexpr, L: gl.constexpr, PER: gl.constexpr, RP: gl.constexpr, NBUF: gl.constexpr,
    ADDS: gl.constexpr,
):  # fmt: skip
    """The warps that compute: parts of dq; and dk and dv of a block, or a sum over some of its queries.

    Keys are the rows of the scores: so what the gradients of keys and values are products of stays in registers, and only ds, for those of
    the queries, goes through shared memory, which is what these warps wait for most.
    """
    ready, empty, block_ready, block_empty, out_ready, out_empty, sums_ready, sums_empty = bars
    ROWS: gl.constexpr = PER * RP
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    OF_ROWS: gl.constexpr = gl.SliceLayout(0, SCORES)
    keys = gl.arange(0, L, layout=gl.SliceLayout(1, SCORES))
    rows = gl.arange(0, ROWS, layout=OF_ROWS)
    ds_buf = ds_mma.index(0)
    turn = 0
    blocks = 0
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        dk = gl.zeros([L, D], gl.float32, SUMS)
        dv = gl.zeros([L, D], gl.float32, SUMS)
        mbarrier.wait(block_ready.index(0), blocks & 1)
        if D == 64:
            # The block itself fits into registers, too.
            k = k_mma.index(0).load(gl.DotOperandLayout(0, SCORES, 2))
            v = v_mma.index(0).load(gl.DotOperandLayout(0, SCORES, 2))
        else:
            k, v = k_mma.index(0), v_mma.index(0)
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
            # Not before it is needed: there are no registers to spare.
            delta = sums_bufs.index(1).load(OF_ROWS)
            mbarrier.arrive(sums_empty.index(0), count=1)
            dp = warpgroup_mma_wait(0, deps=(dp,))
            narrow_p = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, SUMS, 2))
            dv = warpgroup_mma(narrow_p, grad, dv, is_async=True)
            ds = (p * (dp - delta[None, :])).to(q.dtype)
            # What was found last lies where ds comes to lie, until it is written.
            mbarrier.wait(out_empty.index(0), (turn & 1) ^ 1)
            ds_buf.store(ds)
            fence_async_shared()
            gl.thread_barrier()
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
            out_mma.index(0).store(dq.to(q.dtype))
            fence_async_shared()
            mbarrier.arrive(out_ready.index(0), count=1)
            turn += 1
        # Before others are copied there: some of the block was read as ordinary memory.
        fence_async_shared()
        mbarrier.arrive(block_empty.index(0), count=1)
        blocks += 1
        of_block = gl.arange(0, L, layout=gl.SliceLayout(1, SUMS))
        d = gl.arange(0, D, layout=gl.SliceLayout(0, SUMS))
        sums = gl.load(pieces_ptr + 4 * room + piece)
        if sums < 0:
            # A block at the end of its document is shorter: the keys after it belong to the next one, which another program writes.
            s = first + of_block
            mine = gl.load(owner_ptr + b * T + s, mask=s < T, other=-1) == first
            into = (((b * T + s) * G + g).to(gl.int64) * D)[:, None] + d[None, :]
            dk = dk * factor
            if ADDS:
                dk += gl.load(dk_ptr + into, mask=mine[:, None], other=0.0)
                dv += gl.load(dv_ptr + into, mask=mine[:, None], other=0.0)
            gl.store(dk_ptr + into, dk.to(dk_ptr.dtype.element_ty), mask=mine[:, None])
            gl.store(dv_ptr + into, dv.to(dv_ptr.dtype.element_ty), mask=mine[:, None])
        else:
            of_sums = sums_ptr + sums.to(gl.int64) * 2 * L * D + (of_block * D)[:, None] + d[None, :]
            gl.store(of_sums, dk * factor)
            gl.store(of_sums + L * D, dv)


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
    # ds, and then, in its place, dq.
    out_bufs = gl.allocate_shared_memory(dtype, [2 * PER, 1, RP, 64], parts_desc.layout)
    k_bufs = gl.allocate_shared_memory(dtype, [HALVES, L, 64], k_desc.layout)
    v_bufs = gl.allocate_shared_memory(dtype, [HALVES, L, 64], v_desc.layout)
    bars = (
        make_barriers(NBUF), make_barriers(NBUF), make_barriers(1), make_barriers(1), make_barriers(1), make_barriers(1),
        make_barriers(1), make_barriers(1),
    )  # fmt: skip
    q_mma = q_bufs._reinterpret(dtype, [NBUF, ROWS, D], k_desc.layout)
    grad_mma = grad_bufs._reinterpret(dtype, [NBUF, ROWS, D], k_desc.layout)
    ds_mma = out_bufs._reinterpret(dtype, [2, L, ROWS], k_desc.layout)
    out_mma = out_bufs._reinterpret(dtype, [2 // HALVES, ROWS, D], k_desc.layout)
    sums_bufs = gl.allocate_shared_memory(gl.float32, [2, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    k_mma = k_bufs._reinterpret(dtype, [1, L, D], k_desc.layout)
    v_mma = v_bufs._reinterpret(dtype, [1, L, D], k_desc.layout)
    gl.warp_specialize(
        [
            (
                differentiate_blocks,
                (
                    q_mma, grad_mma, k_mma, v_mma, ds_mma, out_mma, sums_bufs, bars, owner_ptr, entry_ptr, pieces_ptr, count_ptr, dk_ptr,
                    dv_ptr, sums_ptr, t0, Q, T, room, scale, factor, G, D, N, L, PER, RP, NBUF, ADDS,
                ),
            ),
            (
                load_tiles,
                (
                    q_desc, grad_desc, k_desc, v_desc, q_bufs, grad_bufs, k_bufs, v_bufs, bars, entry_ptr, pieces_ptr, count_ptr, t0, Q, T, room,
                    G, D, N, L, PER, RP, NBUF, True,
                ),
            ),
            (
                store_tiles,
                (parts_desc, out_bufs, bars, entry_ptr, pieces_ptr, count_ptr, t0, Q, T, room, G, D, N, PER, 1),
            ),
            (
                load_sums,
                (
                    sums_bufs, bars, entry_ptr, pieces_ptr, count_ptr, lse_ptr, delta_ptr, t0, Q, T, room, G, R, N, PER, RP
                ),
            ),
        ],
        [1, 1, 1],
        [24, 24, 24],
    )  # fmt: skip
