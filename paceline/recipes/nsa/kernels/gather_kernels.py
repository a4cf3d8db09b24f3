# mypy: ignore-errors
"""The GPU kernel of attention to chosen blocks of keys for Hopper's matrix units and copy engine, in Gluon, the layer beneath Triton.

gather_attention.py launches it, and imports this file only where Triton is. The files of the gradients, gather_gradient_kernels.py and
key_gradient_kernels.py, share what copies. mypy knows nothing of Gluon's language.

It computes what nsa_chosen_forward_kernel does (chosen_kernels.py, whose names and shapes are these), a block and the queries that chose
it. There every thread works out addresses, waits for what it gathers and writes it; here a warp of its own has the copy engine fetch
queries, all heads of a group at a time, some tiles ahead, another one has it write what was found, and four warps do nothing but compute.
The R heads of a query take RP rows of a tile, 8 or 16: what there is no head for is read as zeros and written nowhere. What is multiplied
by a probability of 0 is not masked besides: where a number is not finite it may spread to keys of other documents. A tile is PER queries;
NBUF of them are fetched ahead. Tiles lie in shared memory as the matrix units want them, 64 numbers wide: HALVES of a head.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
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
def count_blocks(piece):
    """How many pieces this program had before."""
    return (piece - gl.program_id(0)) // gl.num_programs(0)


@gluon.jit
def load_entry(entry_ptr, index, end, absent):
    """A query's place t · n + i; behind the last one, `absent`."""
    return gl.load(entry_ptr + index, mask=index < end, other=absent).to(gl.int32)


@gluon.jit
def load_entries(entry_ptr, start, end, absent, PER: gl.constexpr):
    """Those of a tile, one by one; all of them are on their way before the first is waited for."""
    entries = ()
    for i in gl.static_range(PER):
        entries = entries + (load_entry(entry_ptr, start + i, end, absent),)  # noqa: RUF005 (Gluon knows no unpacking)
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
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, b, g, first, begin, end = open_work(pieces_ptr, piece, room, G)
        mbarrier.wait(block_empty.index(0), (count_blocks(piece) & 1) ^ 1)
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


@gluon.jit
def store_tiles(
    parts_desc, out_bufs, bars, entry_ptr, pieces_ptr, count_ptr, Q, room,
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
    q_mma, k_mma, v_mma, out_mma, bars, entry_ptr, pieces_ptr, count_ptr, parts_lse_ptr, t0, Q, room, scale,
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
    for piece in range(gl.program_id(0), count_work(count_ptr), gl.num_programs(0)):
        x, _, _, first, begin, end = open_work(pieces_ptr, piece, room, G)
        of_work = x.to(gl.int64) * Q * N
        mbarrier.wait(block_ready.index(0), count_blocks(piece) & 1)
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
                    q_mma, k_mma, v_mma, out_mma, bars, entry_ptr, pieces_ptr, count_ptr, parts_lse_ptr, t0, Q, room, scale,
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
                (parts_desc, out_bufs, bars, entry_ptr, pieces_ptr, count_ptr, Q, room, G, D, N, PER, NOUT),
            ),
        ],
        [1, 1],
        [24, 24],
    )  # fmt: skip
