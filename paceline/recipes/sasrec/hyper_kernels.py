# mypy: ignore-errors
"""The GPU kernels of mHC's forward, in Triton: each reads the streams once, and Sinkhorn's rounds never leave the registers.

hyper_fused.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

T tokens, n streams, D width, K = n·D, M = n + n + n² numbers a token mixes by (pre, post, res, in this order). All that is
per token lies with the tokens innermost (raw_MT, pre_nT, …), so that neighbouring threads read neighbouring numbers. All
arithmetic is fp32, whatever the streams are stored in. Nothing is summed by atomics: the same input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A tuple holds one tile per stream, or one vector of tokens per entry of a mixing matrix: Triton keeps its members in
# registers, and loops over it are unrolled. Where a kernel sums over the width, its tile is (tokens, BD / 4, 4): a thread has the
# four neighbours and adds them by itself, eight threads share a token, and what they have is added once, at the end.
#
# T differs between the last batch of an evaluation and the others: that shall not compile the forward anew. A backward is told
# whether T is a multiple of 16, and loads four tokens at once then.
#
# Each kernel goes through the tokens against the direction of the one before it, so that it begins with what that one touched
# last, which is still in the cache.


MP = tl.constexpr(32)
"""room for a token's M mapping numbers, where a power of two is asked for: 24 of 4 streams, 8 of 2"""
LOWEST = tl.constexpr(-80.0)
"""Logits further below the largest of their matrix count as this: exp does not vanish there, so no sum is 0. sinkhorn.py stops earlier."""


@triton.jit
def load_tiles(x_ptr, x_t, first, d, T, D: tl.constexpr, BT: tl.constexpr, R: tl.constexpr):
    """R tiles of BT tokens each, of one stream."""
    tiles = ()
    for r in tl.static_range(R):
        t = (first + r * BT + tl.arange(0, BT))[:, None, None]
        tiles += (tl.load(x_ptr + t * x_t + d, mask=(t < T) & (d < D), other=0.0).to(tl.float32),)
    return tiles


@triton.jit(do_not_specialize=["T"])
def project_kernel(
    x_ptr, x_t, x_n, project_ptr, gates_ptr, bias_ptr, raw_ptr, inverse_ptr, u_ptr, T, eps,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """raw_MT = project · x / rms, inverse_T = 1 / rms, u_TD = Σ pre · x.

    A product with 24 columns is too narrow for the tensor cores: to split fp32 for them costs as much as the product. A program
    has its tokens in R tiles, so that a thread uses what it loads of project R times.
    """
    M: tl.constexpr = 2 * n + n * n
    R: tl.constexpr = 4
    B: tl.constexpr = BT // R
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT
    chunks: tl.constexpr = (D + BD - 1) // BD
    token = tl.arange(0, B)
    # Spread over the tile's tokens also where they all are to get the same: all tiles have one layout then.
    column = tl.broadcast_to(tl.arange(0, BD // 4)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :], [B, BD // 4, 4])
    squares = ()
    products = ()
    for _ in tl.static_range(R):
        squares += (tl.zeros([B, BD // 4], tl.float32),)
    for _ in tl.static_range(M * R):
        products += (tl.zeros([B, BD // 4], tl.float32),)
    x = load_tiles(x_ptr, x_t, first, column, T, D, B, R)
    for chunk in range(n * chunks):
        # The next tiles are on their way while these are multiplied; after the last there are none, and the first come again.
        following = (chunk + 1) % (n * chunks)
        x_following = load_tiles(
            x_ptr + (following // chunks) * x_n, x_t, first, (following % chunks) * BD + column, T, D, B, R
        )
        larger = ()
        for r in tl.static_range(R):
            larger += (squares[r] + tl.sum(x[r] * x[r], 2),)
        squares = larger
        larger = ()
        s, d = chunk // chunks, (chunk % chunks) * BD + column
        for m in tl.static_range(M):
            row = tl.load(project_ptr + (m * n + s) * D + d, mask=d < D, other=0.0)
            for r in tl.static_range(R):
                larger += (products[m * R + r] + tl.sum(x[r] * row, 2),)
        products = larger
        x = x_following
    gate, number = tl.load(gates_ptr), tl.arange(0, MP)[None, :]
    for r in tl.static_range(R):
        t = first + r * B + token
        inverse = tl.rsqrt(tl.sum(squares[r], 1) / (n * D) + eps)
        tl.store(inverse_ptr + t, inverse, mask=t < T)
        pre = ()
        raw = tl.zeros([B, MP], tl.float32)
        for m in tl.static_range(M):
            one = tl.sum(products[m * R + r], 1) * inverse
            raw = tl.where(number == m, one[:, None], raw)
            if m < n:
                pre += (tl.sigmoid(gate * one + tl.load(bias_ptr + m)),)
        # In one go: Triton takes seconds over a kernel with a hundred stores.
        tl.store(raw_ptr + number * T + t[:, None], raw, mask=(number < M) & (t[:, None] < T))
        t = t[:, None, None]
        for start in range(0, D, BD):
            d = start + column
            u = tl.zeros([B, BD // 4, 4], tl.float32)
            for s in tl.static_range(n):
                u += pre[s][:, None, None] * load_tiles(x_ptr + s * x_n, x_t, first + r * B, d, T, D, B, 1)[0]
            tl.store(u_ptr + t * D + d, u, mask=(t < T) & (d < D))


@triton.jit
def load_logits(raw_ptr, gates_ptr, bias_ptr, T, t, which: tl.constexpr, first: tl.constexpr, count: tl.constexpr):
    """α raw + b of one group of columns, a vector of tokens each."""
    gate = tl.load(gates_ptr + which)
    logits = ()
    for m in tl.static_range(first, first + count):
        logits += (gate * tl.load(raw_ptr + m * T + t, mask=t < T, other=0.0) + tl.load(bias_ptr + m),)
    return logits


@triton.jit
def exponentials(logits, n: tl.constexpr):
    """exp of an n × n matrix; its largest entry is taken out, which Sinkhorn's result does not feel."""
    largest = logits[0]
    for ij in tl.static_range(1, n * n):
        largest = tl.maximum(largest, logits[ij])
    matrix = ()
    for ij in tl.static_range(n * n):
        matrix += (tl.exp(tl.maximum(logits[ij] - largest, LOWEST)),)
    return matrix


@triton.jit
def column_scales(matrix, rows, n: tl.constexpr):
    """1 / the columns' sums of a matrix whose rows are scaled."""
    scales = ()
    for j in tl.static_range(n):
        total = matrix[j] * rows[0]
        for i in tl.static_range(1, n):
            total += matrix[i * n + j] * rows[i]
        scales += (1.0 / total,)
    return scales


@triton.jit
def row_scales(matrix, columns, n: tl.constexpr):
    scales = ()
    for i in tl.static_range(n):
        total = matrix[i * n] * columns[0]
        for j in tl.static_range(1, n):
            total += matrix[i * n + j] * columns[j]
        scales += (1.0 / total,)
    return scales


@triton.jit(do_not_specialize=["T"])
def map_kernel(
    raw_ptr, gates_ptr, bias_ptr, pre_ptr, post_ptr, res_ptr, scales_ptr, T, ITERATIONS, n: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """pre_nT, post_nT, res_nnT, and scales_InT: what the rows are scaled by after each round. One thread has one token."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    pre = load_logits(raw_ptr, gates_ptr, bias_ptr, T, t, 0, 0, n)
    post = load_logits(raw_ptr, gates_ptr, bias_ptr, T, t, 1, n, n)
    for s in tl.static_range(n):
        tl.store(pre_ptr + s * T + t, tl.sigmoid(pre[s]), mask=t < T)
        tl.store(post_ptr + s * T + t, 2.0 * tl.sigmoid(post[s]), mask=t < T)
    matrix = exponentials(load_logits(raw_ptr, gates_ptr, bias_ptr, T, t, 2, 2 * n, n * n), n)
    rows = ()
    columns = ()
    for _ in tl.static_range(n):
        rows += (tl.full([BT], 1.0, tl.float32),)
        columns += (tl.full([BT], 1.0, tl.float32),)
    for k in range(ITERATIONS):
        columns = column_scales(matrix, rows, n)
        rows = row_scales(matrix, columns, n)
        for i in tl.static_range(n):
            tl.store(scales_ptr + (k * n + i) * T + t, rows[i], mask=t < T)
    for i in tl.static_range(n):
        for j in tl.static_range(n):
            tl.store(res_ptr + (i * n + j) * T + t, rows[i] * matrix[i * n + j] * columns[j], mask=t < T)


@triton.jit(do_not_specialize=["T"])
def write_kernel(
    x_ptr, x_t, x_n, y_ptr, y_t, res_ptr, post_ptr, out_ptr, T,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out_TnD = res · x + post · y."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = (t[:, None] < T) & (d[None, :] < D)
    y = tl.load(y_ptr + t[:, None] * y_t + d[None, :], mask=inside, other=0.0).to(tl.float32)
    x = ()
    for s in tl.static_range(n):
        x += (tl.load(x_ptr + t[:, None] * x_t + s * x_n + d[None, :], mask=inside, other=0.0).to(tl.float32),)
    for i in tl.static_range(n):
        post = tl.load(post_ptr + i * T + t, mask=t < T, other=0.0)
        out = post[:, None] * y
        for j in tl.static_range(n):
            res = tl.load(res_ptr + (i * n + j) * T + t, mask=t < T, other=0.0)
            out += res[:, None] * x[j]
        tl.store(out_ptr + (t[:, None] * n + i) * D + d[None, :], out, mask=inside)
