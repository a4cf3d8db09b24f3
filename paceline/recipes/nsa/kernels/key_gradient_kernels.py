# mypy: ignore-errors
"""The GPU kernel of the gradients of keys, where query t sees the keys from low[t] up to high[t], for Hopper's matrix units and copy engine, in Gluon.

range_attention.py launches it, and imports this file only where Triton is. mypy knows nothing of Gluon's language.

It computes what nsa_range_key_gradient_kernel does (range_kernels.py, whose names and shapes are these). There p and its gradient go through
shared memory to be turned, and every thread waits for what it loads; here keys are the rows of the scores, so that nothing is turned and dk
and dv are products of what is in registers. A warp has queries fetched, and the gradients of what they read, NBUF tiles ahead; another one
works out what belongs to each query: lse, delta, and which keys of the tile it sees. Tiles lie in shared memory as the matrix units want
them, 64 numbers wide: HALVES of a head.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from paceline.recipes.nsa.kernels.gather_kernels import load_block, make_barriers
from paceline.recipes.nsa.kernels.range_kernels import name_after


@gluon.jit
def open_keys(
    low_ptr, since_ptr, until_ptr, T, S,
    G: gl.constexpr, SELECTION: gl.constexpr, SPANS: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
):  # fmt: skip
    """Of this program: its row and group; its first key; its span of the queries, begin to end, of which whole to rest see all of these keys."""
    if SELECTION:
        tile, x = gl.program_id(1), gl.program_id(0)
    else:
        tile, x = gl.program_id(0), gl.program_id(1)
    first = tile * BN
    last = gl.minimum(first + BN, S) - 1
    b, g = x // G, x % G
    begin, end = gl.load(since_ptr + b * S + first), gl.load(until_ptr + b * S + last)
    since, until = gl.load(since_ptr + b * S + last), gl.load(until_ptr + b * S + first)
    whole = gl.minimum(begin + (since - begin + BM - 1) // BM * BM, end)
    rest = whole + gl.maximum(until - whole, 0) // BM * BM
    size = gl.cdiv(gl.cdiv(end - begin, BM), SPANS) * BM
    begin = gl.minimum(begin + gl.program_id(2) % SPANS * size, end)
    end = gl.minimum(begin + size, end)
    whole = gl.minimum(gl.maximum(whole, begin), end)
    rest = gl.minimum(gl.maximum(rest, begin), end)
    if SELECTION:
        # Keys and queries are the same tokens. Tiles of keys begin anywhere in a document: with keys of two blocks none is seen whole.
        block = (first - gl.load(low_ptr + b * T + first)) // SELECTION
        if (last - gl.load(low_ptr + b * T + last)) // SELECTION != block:
            whole = end
            rest = end
    return b, g, first, begin, whole, rest, end


@gluon.jit
def count_tiles(begin, whole, rest, end, BM: gl.constexpr):
    """Of a head: those before `whole`, whole ones, those behind `rest`."""
    return gl.cdiv(whole - begin, BM), (rest - whole) // BM, gl.cdiv(end - rest, BM)


@gluon.jit
def find_start(i, begin, whole, rest, end, BM: gl.constexpr):
    """The first query of a head's i-th tile, from the last one back: where the past is long, all tiles of keys end there, so that programs side
    by side read the same queries. And whether the tile is a whole one."""
    before, inside, behind = count_tiles(begin, whole, rest, end, BM)
    start = rest - (i - behind + 1) * BM
    is_whole = (i >= behind) & (i < behind + inside)
    if i < behind:
        start = rest + (behind - 1 - i) * BM
    if i >= behind + inside:
        start = begin + (before - 1 - (i - behind - inside)) * BM
    return start, is_whole


@gluon.jit
def count_all(begin, whole, rest, end, BM: gl.constexpr):
    before, inside, behind = count_tiles(begin, whole, rest, end, BM)
    return before + inside + behind


@gluon.jit
def find_head(g, H: gl.constexpr, G: gl.constexpr, SHARE: gl.constexpr, SPANS: gl.constexpr):
    """The first one of this program's share of its group."""
    return g * (H // G) + gl.program_id(2) // SPANS * SHARE


@gluon.jit
def load_queries(
    q_desc, grad_desc, k_desc, v_desc, q_bufs, grad_bufs, k_bufs, v_bufs, bars, low_ptr, since_ptr, until_ptr, T, S,
    H: gl.constexpr, G: gl.constexpr, D: gl.constexpr, SELECTION: gl.constexpr, SHARE: gl.constexpr, SPANS: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, NBUF: gl.constexpr,
):  # fmt: skip
    """The warp that has everything fetched: keys and values, then one tile of queries after another, of one head after another."""
    ready, empty, block_ready = bars[0], bars[1], bars[2]
    b, g, first, begin, whole, rest, end = open_keys(low_ptr, since_ptr, until_ptr, T, S, G, SELECTION, SPANS, BM, BN)
    HALVES: gl.constexpr = D // 64
    mbarrier.expect(block_ready.index(0), 2 * BN * D * 2)
    load_block(k_desc, k_bufs, block_ready.index(0), b * S + first, g * D, HALVES)
    load_block(v_desc, v_bufs, block_ready.index(0), b * S + first, g * D, HALVES)
    tiles = count_all(begin, whole, rest, end, BM)
    head = find_head(g, H, G, SHARE, SPANS)
    turn = 0
    for h in range(head, head + SHARE):
        for i in range(tiles):
            buf = turn % NBUF
            start, _ = find_start(i, begin, whole, rest, end, BM)
            mbarrier.wait(empty.index(buf), ((turn // NBUF) & 1) ^ 1)
            mbarrier.expect(ready.index(buf), 2 * BM * D * 2)
            for c in gl.static_range(HALVES):
                at = [b * T + start, h * D + 64 * c]
                tma.async_copy_global_to_shared(q_desc, at, ready.index(buf), q_bufs.index(buf * HALVES + c))
                tma.async_copy_global_to_shared(grad_desc, at, ready.index(buf), grad_bufs.index(buf * HALVES + c))
            turn += 1


@gluon.jit
def stage_sums(
    sums_bufs, ends_bufs, bars, low_ptr, high_ptr, since_ptr, until_ptr, word_ptr, lse_ptr, delta_ptr, T, S,
    H: gl.constexpr, G: gl.constexpr, SELECTION: gl.constexpr, SHARE: gl.constexpr, SPANS: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, NBUF: gl.constexpr,
):  # fmt: skip
    """The warp that reads what belongs to the queries of a tile besides: lse and delta, and from and to which of these keys each one sees."""
    ready, empty = bars[3], bars[1]
    b, g, first, begin, whole, rest, end = open_keys(low_ptr, since_ptr, until_ptr, T, S, G, SELECTION, SPANS, BM, BN)
    tiles = count_all(begin, whole, rest, end, BM)
    head = find_head(g, H, G, SHARE, SPANS)
    rows = gl.arange(0, BM, layout=gl.BlockedLayout([BM // 32], [32], [1], [0]))
    turn = 0
    for h in range(head, head + SHARE):
        of_head = (b * H + h) * T
        for i in range(tiles):
            buf = turn % NBUF
            start, is_whole = find_start(i, begin, whole, rest, end, BM)
            t = start + rows
            lse = gl.load(lse_ptr + of_head + t, mask=t < T, other=float("inf"))
            delta = gl.load(delta_ptr + of_head + t, mask=t < T, other=0.0)
            low = gl.load(low_ptr + b * T + t, mask=t < T, other=0)
            high = gl.load(high_ptr + b * T + t, mask=t < T, other=0)
            if SELECTION:
                # As `find_seen` has it; of a tile that is whole all keys are of one block, and a query sees all of them, or none.
                word = gl.load(word_ptr + (b * G + g) * T + t, mask=t < T, other=0)
                block = gl.maximum(first - low, 0) // SELECTION
                border = low + (block + 1) * SELECTION
                has_block = ((word >> block) & 1) != 0
                low = gl.where(has_block, low, border)
                high = gl.where(((word >> gl.minimum(block + 1, 31)) & 1) != 0, high, gl.minimum(high, border))
                if is_whole:
                    lse = gl.where(has_block, lse, float("inf"))
            mbarrier.wait(empty.index(buf), ((turn // NBUF) & 1) ^ 1)
            sums_bufs.index(2 * buf).store(lse)
            sums_bufs.index(2 * buf + 1).store(delta)
            ends_bufs.index(2 * buf).store(low - first)
            ends_bufs.index(2 * buf + 1).store(high - first)
            mbarrier.arrive(ready.index(buf), count=1)
            turn += 1


@gluon.jit
def hold_keys(k_mma, v_mma, D: gl.constexpr, SCORES: gl.constexpr):
    """Keys and values as the products want them: of heads of 64 in registers; of 128 they would not fit."""
    if D == 64:
        k = k_mma.index(0).load(gl.DotOperandLayout(0, SCORES, 2))
        v = v_mma.index(0).load(gl.DotOperandLayout(0, SCORES, 2))
    else:
        k, v = k_mma.index(0), v_mma.index(0)
    return k, v


@gluon.jit
def copy_held(held, zero, D: gl.constexpr):
    """What is in registers, in others of its own for one product. Of one that is read in every round ptxas 12.8 to 13.0 thinks that the first
    is the last, and puts p into its registers (tests/hopper/machine_code.py looks for that); so it must not know that this is the same."""
    if D == 64:
        held = gl.inline_asm_elementwise(
            "or.b32 $0, $1, $2;", "=r,r,r", [held, zero], dtype=held.dtype, is_pure=True, pack=2
        )
    return held


@gluon.jit
def differentiate_keys(
    q_mma, grad_mma, k_mma, v_mma, sums_bufs, ends_bufs, bars, low_ptr, since_ptr, until_ptr, dk_ptr, dv_ptr, T, S, scale, factor,
    G: gl.constexpr, D: gl.constexpr, SELECTION: gl.constexpr, SHARE: gl.constexpr, SPANS: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, NBUF: gl.constexpr,
):  # fmt: skip
    """The warps that compute: dk and dv, a tile of queries after another."""
    ready, empty, block_ready, sums_ready = bars
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    OF_ROWS: gl.constexpr = gl.SliceLayout(0, SCORES)
    b, g, first, begin, whole, rest, end = open_keys(low_ptr, since_ptr, until_ptr, T, S, G, SELECTION, SPANS, BM, BN)
    tiles = count_all(begin, whole, rest, end, BM)
    keys = gl.arange(0, BN, layout=gl.SliceLayout(1, SCORES))
    dk = gl.zeros([BN, D], gl.float32, SUMS)
    dv = gl.zeros([BN, D], gl.float32, SUMS)
    mbarrier.wait(block_ready.index(0), 0)
    k, v = hold_keys(k_mma, v_mma, D, SCORES)
    zero = gl.full([BN, D], 0, gl.int16, gl.DotOperandLayout(0, SCORES, 2)) + (T >> 31).to(gl.int16)
    turn = 0
    for _ in range(SHARE):
        for i in range(tiles):
            buf = turn % NBUF
            phase = (turn // NBUF) & 1
            mbarrier.wait(ready.index(buf), phase)
            q, grad = q_mma.index(buf), grad_mma.index(buf)
            none = gl.zeros([BN, BM], gl.float32, SCORES)
            score = warpgroup_mma(copy_held(k, zero, D), q.permute((1, 0)), none, use_acc=False, is_async=True)
            dp = warpgroup_mma(copy_held(v, zero, D), grad.permute((1, 0)), none, use_acc=False, is_async=True)
            mbarrier.wait(sums_ready.index(buf), phase)
            lse = sums_bufs.index(2 * buf).load(OF_ROWS)
            score = warpgroup_mma_wait(1, deps=(score,))
            p = gl.exp2(score * scale - lse[None, :])
            _, is_whole = find_start(i, begin, whole, rest, end, BM)
            if not is_whole:
                low, high = ends_bufs.index(2 * buf).load(OF_ROWS), ends_bufs.index(2 * buf + 1).load(OF_ROWS)
                p = gl.where((keys[:, None] >= low[None, :]) & (keys[:, None] < high[None, :]), p, 0.0)
            delta = sums_bufs.index(2 * buf + 1).load(OF_ROWS)
            dp = warpgroup_mma_wait(0, deps=(dp,))
            narrow_p = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, SUMS, 2))
            dv = warpgroup_mma(narrow_p, grad, dv, is_async=True)
            ds = (p * (dp - delta[None, :])).to(q.dtype)
            dk = warpgroup_mma(gl.convert_layout(ds, gl.DotOperandLayout(0, SUMS, 2)), q, dk, is_async=True)
            dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))
            mbarrier.arrive(empty.index(buf), count=1)
            turn += 1
    s = first + gl.arange(0, BN, layout=gl.SliceLayout(1, SUMS))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, SUMS))
    rows_of_all = (gl.num_programs(0 if SELECTION else 1) // G).to(gl.int64) * S
    into = ((gl.program_id(2) * rows_of_all + b * S + s) * G + g) * D
    at = into[:, None] + d[None, :]
    gl.store(dk_ptr + at, (dk * factor).to(dk_ptr.dtype.element_ty), mask=(s < S)[:, None])
    gl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=(s < S)[:, None])


@gluon.jit(do_not_specialize=["T", "S"], repr=name_after("copied_key_gradient"))
def nsa_range_copied_key_gradient_kernel(
    q_desc, k_desc, v_desc, low_ptr, high_ptr, since_ptr, until_ptr, word_ptr, lse_ptr, delta_ptr, grad_desc, dk_ptr, dv_ptr, T, S, scale, factor,
    H: gl.constexpr, G: gl.constexpr, D: gl.constexpr, SELECTION: gl.constexpr, SHARE: gl.constexpr, SPANS: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, NBUF: gl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one group: SHARE of its heads, one after another, and one of the spans of queries since[s] to until[s].

    dk and dv are (H / G / SHARE · SPANS, B, S, G, D): what each share of the heads and each span adds.
    """
    gl.static_assert(BM == BN)  # of all four tensors boxes are as long
    HALVES: gl.constexpr = D // 64
    dtype: gl.constexpr = q_desc.dtype
    q_bufs = gl.allocate_shared_memory(dtype, [NBUF * HALVES, BM, 64], q_desc.layout)
    grad_bufs = gl.allocate_shared_memory(dtype, [NBUF * HALVES, BM, 64], q_desc.layout)
    k_bufs = gl.allocate_shared_memory(dtype, [HALVES, BN, 64], k_desc.layout)
    v_bufs = gl.allocate_shared_memory(dtype, [HALVES, BN, 64], v_desc.layout)
    sums_bufs = gl.allocate_shared_memory(gl.float32, [2 * NBUF, BM], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ends_bufs = gl.allocate_shared_memory(gl.int32, [2 * NBUF, BM], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bars = (make_barriers(NBUF), make_barriers(NBUF), make_barriers(1), make_barriers(NBUF))
    q_mma = q_bufs._reinterpret(dtype, [NBUF, BM, D], q_desc.layout)
    grad_mma = grad_bufs._reinterpret(dtype, [NBUF, BM, D], q_desc.layout)
    k_mma = k_bufs._reinterpret(dtype, [1, BN, D], k_desc.layout)
    v_mma = v_bufs._reinterpret(dtype, [1, BN, D], k_desc.layout)
    gl.warp_specialize(
        [
            (
                differentiate_keys,
                (
                    q_mma, grad_mma, k_mma, v_mma, sums_bufs, ends_bufs, bars, low_ptr, since_ptr, until_ptr, dk_ptr, dv_ptr, T, S,
                    scale, factor, G, D, SELECTION, SHARE, SPANS, BM, BN, NBUF,
                ),
            ),
            (
                load_queries,
                (
                    q_desc, grad_desc, k_desc, v_desc, q_bufs, grad_bufs, k_bufs, v_bufs, bars, low_ptr, since_ptr, until_ptr, T, S,
                    H, G, D, SELECTION, SHARE, SPANS, BM, BN, NBUF,
                ),
            ),
            (
                stage_sums,
                (
                    sums_bufs, ends_bufs, bars, low_ptr, high_ptr, since_ptr, until_ptr, word_ptr, lse_ptr, delta_ptr, T, S,
                    H, G, SELECTION, SHARE, SPANS, BM, BN, NBUF,
                ),
            ),
        ],
        [1, 1],
        [24, 24],
    )  # fmt: skip
