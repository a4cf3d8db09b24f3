# mypy: ignore-errors
"""The GPU kernels of mHC's backward, in Triton; hyper_kernels.py has the forward, and says how things lie in memory.

x: the streams as they were read; g: the gradient of the streams as they were written; u, y: what the layer got and gave. A name with a
d before it is the gradient of what it names. Sums over tokens end as one part per program, which total_kernel adds in a fixed order.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from paceline.recipes.sasrec.hyper_kernels import LOWEST, MP, exponentials, load_logits

FLOOR = tl.constexpr(math.exp(LOWEST.value) * 1.001)
"""a little above it, for an exp that is not rounded as this one"""


@triton.jit
def write_backward_kernel(
    g_ptr, g_t, g_n, y_ptr, y_t, post_ptr, dy_ptr, dpost_ptr, T,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dy_TD = Σ post · g, dpost_nT = g · y, where g is the gradient of the written streams."""
    t = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT + tl.arange(0, BT)
    d_four = tl.arange(0, BD // 4)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    sums = ()
    for _ in tl.static_range(n):
        sums += (tl.zeros([BT, BD // 4], tl.float32),)
    for start in range(0, D, BD):
        d = start + d_four
        inside = (t[:, None, None] < T) & (d < D)
        y = tl.load(y_ptr + t[:, None, None] * y_t + d, mask=inside, other=0.0).to(tl.float32)
        dy = tl.zeros([BT, BD // 4, 4], tl.float32)
        larger = ()
        for i in tl.static_range(n):
            g = tl.load(g_ptr + t[:, None, None] * g_t + i * g_n + d, mask=inside, other=0.0).to(tl.float32)
            dy += tl.load(post_ptr + i * T + t, mask=t < T, other=0.0)[:, None, None] * g
            larger += (sums[i] + tl.sum(g * y, 2),)
        sums = larger
        tl.store(dy_ptr + t[:, None, None] * D + d, dy, mask=inside)
    for i in tl.static_range(n):
        tl.store(dpost_ptr + i * T + t, tl.sum(sums[i], 1), mask=t < T)


@triton.jit
def dots_kernel(
    x_ptr, x_t, x_n, g_ptr, g_t, g_n, du_ptr, du_t, dpre_ptr, dres_ptr, T,
    n: tl.constexpr, D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dpre_nT = du · x, dres_nnT = g · x: n + n² sums per token. A thread has W neighbours, as many as it loads at once."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    column = tl.arange(0, BD // W)[None, :, None] * W + tl.arange(0, W)[None, None, :]
    pre = ()
    for _ in tl.static_range(n):
        pre += (tl.zeros([BT, BD // W], tl.float32),)
    res = ()
    for _ in tl.static_range(n * n):
        res += (tl.zeros([BT, BD // W], tl.float32),)
    for start in range(0, D, BD):
        d = start + column
        inside = (t[:, None, None] < T) & (d < D)
        du = tl.load(du_ptr + t[:, None, None] * du_t + d, mask=inside, other=0.0).to(tl.float32)
        # As they lie in memory, so that bf16 takes half the registers; widened where they are multiplied.
        x = ()
        g = ()
        for s in tl.static_range(n):
            x += (tl.load(x_ptr + t[:, None, None] * x_t + s * x_n + d, mask=inside, other=0.0),)
            g += (tl.load(g_ptr + t[:, None, None] * g_t + s * g_n + d, mask=inside, other=0.0),)
        larger_pre = ()
        for s in tl.static_range(n):
            larger_pre += (pre[s] + tl.sum(du * x[s].to(tl.float32), 2),)
        pre = larger_pre
        larger_res = ()
        for i in tl.static_range(n):
            for j in tl.static_range(n):
                larger_res += (res[i * n + j] + tl.sum(g[i].to(tl.float32) * x[j].to(tl.float32), 2),)
        res = larger_res
    for s in tl.static_range(n):
        tl.store(dpre_ptr + s * T + t, tl.sum(pre[s], 1), mask=t < T)
    for ij in tl.static_range(n * n):
        tl.store(dres_ptr + ij * T + t, tl.sum(res[ij], 1), mask=t < T)


@triton.jit
def load_scales(scales_ptr, k, T, t, n: tl.constexpr):
    """What the rows are scaled by after round k; nothing yet after round -1, the start."""
    scales = ()
    for i in tl.static_range(n):
        scales += (tl.load(scales_ptr + (k * n + i) * T + t, mask=(t < T) & (k >= 0), other=1.0),)
    return scales


@triton.jit
def scale_rows(matrix, rows, n: tl.constexpr):
    scaled = ()
    for ij in tl.static_range(n * n):
        scaled += (matrix[ij] * rows[ij // n],)
    return scaled


# Knowing T would not make it faster, and it compiles for seconds.
@triton.jit(do_not_specialize=["T"])
def map_backward_kernel(
    raw_ptr, inverse_ptr, gates_ptr, bias_ptr, dpre_ptr, dpost_ptr, dres_ptr, res_ptr, scales_ptr,
    dproduct_ptr, shrink_ptr, sums_ptr, T, D, ITERATIONS, n: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """The gradient of α raw + b, through every round of Sinkhorn, and what follows from it.

    dproduct_MT is the gradient of project · x, before the division by rms has its say. shrink_T is how much of x each token's
    gradient loses, since x / rms does not grow with x. sums_2MP has this program's sums over its tokens of dlogits and of
    dlogits · raw, which the gradients of b and α are made of.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    t = program * BT + tl.arange(0, BT)
    M: tl.constexpr = 2 * n + n * n
    dlogits = ()
    pre = load_logits(raw_ptr, gates_ptr, bias_ptr, T, t, 0, 0, n)
    for s in tl.static_range(n):
        value = tl.sigmoid(pre[s])
        dlogits += (tl.load(dpre_ptr + s * T + t, mask=t < T, other=0.0) * value * (1.0 - value),)
    post = load_logits(raw_ptr, gates_ptr, bias_ptr, T, t, 1, n, n)
    for s in tl.static_range(n):
        value = tl.sigmoid(post[s])
        dlogits += (tl.load(dpost_ptr + s * T + t, mask=t < T, other=0.0) * 2.0 * value * (1.0 - value),)

    # Back, in logarithms: with log res = log matrix + log rows + log columns, and each scale minus the logarithm of a sum,
    # every factor on the way is an entry of a normalised matrix, so nothing overflows.
    matrix = exponentials(load_logits(raw_ptr, gates_ptr, bias_ptr, T, t, 2, 2 * n, n * n), n)
    dmatrix = ()
    for ij in tl.static_range(n * n):
        dres = tl.load(dres_ptr + ij * T + t, mask=t < T, other=0.0)
        dmatrix += (dres * tl.load(res_ptr + ij * T + t, mask=t < T, other=0.0),)
    dcolumns = ()
    for j in tl.static_range(n):
        total = dmatrix[j]
        for i in tl.static_range(1, n):
            total += dmatrix[i * n + j]
        dcolumns += (total,)
    drows = ()
    for i in tl.static_range(n):
        total = dmatrix[i * n]
        for j in tl.static_range(1, n):
            total += dmatrix[i * n + j]
        drows += (total,)
    later = load_scales(scales_ptr, ITERATIONS - 1, T, t, n)
    scales = load_scales(scales_ptr, ITERATIONS - 2, T, t, n)
    for back in range(ITERATIONS):
        after = scale_rows(matrix, later, n)
        before = scale_rows(matrix, scales, n)
        later = scales
        # A round ahead: the memory answers while this one is computed.
        scales = load_scales(scales_ptr, ITERATIONS - 3 - back, T, t, n)
        columns = ()
        reached = ()
        for j in tl.static_range(n):
            total = before[j]
            for i in tl.static_range(1, n):
                total += before[i * n + j]
            columns += (1.0 / total,)
            total = dcolumns[j]
            for i in tl.static_range(n):
                total -= after[i * n + j] * columns[j] * drows[i]
            reached += (total,)
        left = ()
        earlier = ()
        none = ()
        for i in tl.static_range(n):
            total = tl.zeros([BT], tl.float32)
            for j in tl.static_range(n):
                through_columns = before[i * n + j] * columns[j] * reached[j]
                left += (dmatrix[i * n + j] - after[i * n + j] * columns[j] * drows[i] - through_columns,)
                total -= through_columns
            earlier += (total,)
            none += (tl.zeros([BT], tl.float32),)
        dmatrix = left
        drows = earlier
        dcolumns = none
    for ij in tl.static_range(n * n):
        # What was raised to the lowest does not move with its logit.
        dlogits += (tl.where(matrix[ij] > FLOOR, dmatrix[ij], 0.0),)

    inverse = tl.load(inverse_ptr + t, mask=t < T, other=0.0)
    shrink = tl.zeros([BT], tl.float32)
    for m in tl.static_range(M):
        raw = tl.load(raw_ptr + m * T + t, mask=t < T, other=0.0)
        gate = tl.load(gates_ptr + (0 if m < n else 1 if m < 2 * n else 2))
        shrink += gate * dlogits[m] * raw
        tl.store(dproduct_ptr + m * T + t, gate * dlogits[m] * inverse, mask=t < T)
        tl.store(sums_ptr + m * programs + program, tl.sum(dlogits[m], 0))
        tl.store(sums_ptr + (M + m) * programs + program, tl.sum(dlogits[m] * raw, 0))
    tl.store(shrink_ptr + t, shrink * inverse * inverse / (n * D), mask=t < T)


@triton.jit
def read_backward_kernel(
    x_ptr, x_t, x_n, g_ptr, g_t, g_n, du_ptr, du_t, project_ptr, dproduct_ptr, pre_ptr, res_ptr, shrink_ptr, dx_ptr, T,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx_TnD, from all that was made of x."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    inside = (t[:, None] < T) & (d < D)
    du = tl.load(du_ptr + t[:, None] * du_t + d, mask=inside, other=0.0).to(tl.float32)
    shrink = tl.load(shrink_ptr + t, mask=t < T, other=0.0)[:, None]
    dx = ()
    for s in tl.static_range(n):
        x = tl.load(x_ptr + t[:, None] * x_t + s * x_n + d, mask=inside, other=0.0).to(tl.float32)
        dx += (tl.load(pre_ptr + s * T + t, mask=t < T, other=0.0)[:, None] * du - shrink * x,)
    for i in tl.static_range(n):
        g = tl.load(g_ptr + t[:, None] * g_t + i * g_n + d, mask=inside, other=0.0).to(tl.float32)
        larger = ()
        for s in tl.static_range(n):
            larger += (dx[s] + tl.load(res_ptr + (i * n + s) * T + t, mask=t < T, other=0.0)[:, None] * g,)
        dx = larger
    for m in tl.static_range(2 * n + n * n):
        dproduct = tl.load(dproduct_ptr + m * T + t, mask=t < T, other=0.0)[:, None]
        larger = ()
        for s in tl.static_range(n):
            row = tl.load(project_ptr + (m * n + s) * D + d, mask=d < D, other=0.0)
            larger += (dx[s] + dproduct * row,)
        dx = larger
    for s in tl.static_range(n):
        tl.store(dx_ptr + (t[:, None] * n + s) * D + d, dx[s], mask=inside)


@triton.jit
def project_backward_kernel(
    x_ptr, x_t, x_n, dproduct_ptr, parts_ptr, T,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """parts_PMK: this program's part of the gradient of project, over its tokens, for its columns of one stream."""
    M: tl.constexpr = 2 * n + n * n
    chunks: tl.constexpr = (D + BD - 1) // BD
    s = tl.program_id(0) // chunks
    d = (tl.program_id(0) % chunks) * BD + tl.arange(0, BD)
    m = tl.arange(0, MP)
    total = tl.zeros([MP, BD], tl.float32)
    last = (T - 1) // BT * BT
    for behind in range(tl.program_id(1) * BT, T, tl.num_programs(1) * BT):
        t = last - behind + tl.arange(0, BT)
        x = tl.load(
            x_ptr + t[:, None] * x_t + s * x_n + d[None, :], mask=(t[:, None] < T) & (d[None, :] < D), other=0.0
        ).to(tl.float32)
        dproduct = tl.load(
            dproduct_ptr + m[:, None] * T + t[None, :], mask=(m[:, None] < M) & (t[None, :] < T), other=0.0
        )
        total = tl.dot(dproduct, x, total, input_precision="tf32x3")
    place = (tl.program_id(1) * M + m[:, None]) * (n * D) + s * D + d[None, :]
    tl.store(parts_ptr + place, total, mask=(m[:, None] < M) & (d[None, :] < D))


@triton.jit
def total_kernel(
    parts_ptr, PARTS, sums_ptr, PROGRAMS, dproject_ptr, dsmall_ptr,
    n: tl.constexpr, KM: tl.constexpr, B: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The gradients of the parameters from the programs' parts: first of project, then of b, then of α, which a group of columns shares."""
    M: tl.constexpr = 2 * n + n * n
    number = tl.program_id(0) - (tl.num_programs(0) - M - 3)
    if number < 0:
        k = tl.program_id(0) * B + tl.arange(0, B)
        part = tl.arange(0, BP)
        total = tl.zeros([BP, B], tl.float32)
        for start in range(0, PARTS, BP):
            inside = (start + part[:, None] < PARTS) & (k[None, :] < KM)
            total += tl.load(parts_ptr + (start + part[:, None]) * KM + k[None, :], mask=inside, other=0.0)
        tl.store(dproject_ptr + k, tl.sum(total, 0), mask=k < KM)
    else:
        which = number - M
        first = tl.where(which < 0, number, M + which * n)
        count = tl.where(which < 0, 1, tl.where(which < 2, n, n * n))
        place = tl.arange(0, B * BP)
        small = tl.zeros([B * BP], tl.float32)
        for begin in range(first * PROGRAMS, (first + count) * PROGRAMS, B * BP):
            small += tl.load(sums_ptr + begin + place, mask=begin + place < (first + count) * PROGRAMS, other=0.0)
        tl.store(dsmall_ptr + number, tl.sum(small, 0))
