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
# registers, and loops over it are unrolled. Where a kernel sums over the width, a narrow tile goes along it: few threads then
# share a token, and little is left to add between them.


@triton.jit
def project_kernel(
    x_ptr, x_t, x_n, project_ptr, raw_ptr, inverse_ptr, T, eps,
    n: tl.constexpr, D: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """raw_MT = project · x / rms, inverse_T = 1 / rms."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    m = tl.arange(0, MP)
    chunks: tl.constexpr = (D + BD - 1) // BD
    squares = tl.zeros([BT, BD], tl.float32)
    product = tl.zeros([BT, MP], tl.float32)
    for chunk in range(n * chunks):
        s = chunk // chunks
        d = (chunk % chunks) * BD + tl.arange(0, BD)
        x = tl.load(
            x_ptr + t[:, None] * x_t + s * x_n + d[None, :], mask=(t[:, None] < T) & (d[None, :] < D), other=0.0
        ).to(tl.float32)
        project = tl.load(
            project_ptr + m[None, :] * (n * D) + s * D + d[:, None], mask=(d[:, None] < D) & (m[None, :] < M), other=0.0
        )
        squares += x * x
        # Three tf32 products are as good as fp32, and run on the tensor cores.
        product = tl.dot(x, project, product, input_precision="tf32x3")
    inverse = tl.rsqrt(tl.sum(squares, 1) / (n * D) + eps)
    tl.store(inverse_ptr + t, inverse, mask=t < T)
    tl.store(
        raw_ptr + m[None, :] * T + t[:, None], product * inverse[:, None], mask=(t[:, None] < T) & (m[None, :] < M)
    )


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
        matrix += (tl.exp(logits[ij] - largest),)
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


@triton.jit
def map_kernel(
    raw_ptr, gates_ptr, bias_ptr, pre_ptr, post_ptr, res_ptr, T, ITERATIONS, n: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """pre_nT, post_nT, res_nnT of each token; one thread has one token."""
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
    for _ in range(ITERATIONS):
        columns = column_scales(matrix, rows, n)
        rows = row_scales(matrix, columns, n)
    for i in tl.static_range(n):
        for j in tl.static_range(n):
            tl.store(res_ptr + (i * n + j) * T + t, rows[i] * matrix[i * n + j] * columns[j], mask=t < T)


@triton.jit
def read_kernel(
    x_ptr, x_t, x_n, pre_ptr, u_ptr, T, n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """u_TD = Σ pre · x."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = (t[:, None] < T) & (d[None, :] < D)
    u = tl.zeros([BT, BD], tl.float32)
    for s in tl.static_range(n):
        pre = tl.load(pre_ptr + s * T + t, mask=t < T, other=0.0)
        u += pre[:, None] * tl.load(x_ptr + t[:, None] * x_t + s * x_n + d[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
    tl.store(u_ptr + t[:, None] * D + d[None, :], u, mask=inside)


@triton.jit
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
