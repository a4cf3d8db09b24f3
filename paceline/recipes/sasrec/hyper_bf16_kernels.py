# mypy: ignore-errors
"""The GPU kernels of mHC whose narrow products go to the tensor cores, for streams in bf16; hyper_kernels.py says how things lie in memory.

Streams in bf16 are exact operands there. What is fp32 and decides how streams mix (project, and its gradient) goes in as two numbers of
bf16, one for what the other leaves: 16 bits of it count, and sums are fp32. For streams in fp32 the splitting would cost as much as it
saves: those have kernels without tensor cores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.sasrec.hyper_kernels import MP


@triton.jit
def split(value):
    """Two numbers of bf16 whose sum is the value, but for the last bits."""
    high = value.to(tl.bfloat16)
    return high, (value - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["T"])
def project_bf16_kernel(
    x_ptr, x_t, x_n, project_ptr, gates_ptr, bias_ptr, raw_ptr, inverse_ptr, u_ptr, T, eps,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """raw_MT = project · x / rms, inverse_T = 1 / rms, u_TD = Σ pre · x."""
    M: tl.constexpr = 2 * n + n * n
    t = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT + tl.arange(0, BT)
    column, number = tl.arange(0, BD), tl.arange(0, MP)
    chunks: tl.constexpr = (D + BD - 1) // BD
    products = tl.zeros([BT, MP], tl.float32)
    squares = tl.zeros([BT], tl.float32)
    for chunk in range(n * chunks):
        s, d = chunk // chunks, (chunk % chunks) * BD + column
        x = tl.load(
            x_ptr + t[:, None] * x_t + s * x_n + d[None, :], mask=(t[:, None] < T) & (d[None, :] < D), other=0.0
        )
        high, low = split(
            tl.load(
                project_ptr + (number[None, :] * n + s) * D + d[:, None],
                mask=(number[None, :] < M) & (d[:, None] < D),
                other=0.0,
            )
        )
        products = tl.dot(x, low, products)
        products = tl.dot(x, high, products)
        wide = x.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
    inverse = tl.rsqrt(squares / (n * D) + eps)
    tl.store(inverse_ptr + t, inverse, mask=t < T)
    raw = products * inverse[:, None]
    tl.store(raw_ptr + number[None, :] * T + t[:, None], raw, mask=(number[None, :] < M) & (t[:, None] < T))
    gate = tl.load(gates_ptr)
    pre = ()
    for s in tl.static_range(n):
        one = tl.sum(tl.where(number[None, :] == s, raw, 0.0), 1)
        pre += (tl.sigmoid(gate * one + tl.load(bias_ptr + s)),)
    for start in range(0, D, BD):
        d = start + column[None, :]
        inside = (t[:, None] < T) & (d < D)
        u = tl.zeros([BT, BD], tl.float32)
        for s in tl.static_range(n):
            # A second time, and this time from the cache.
            x = tl.load(x_ptr + t[:, None] * x_t + s * x_n + d, mask=inside, other=0.0).to(tl.float32)
            u += pre[s][:, None] * x
        tl.store(u_ptr + t[:, None] * D + d, u, mask=inside)


@triton.jit
def spread_bf16_kernel(
    project_ptr, dproduct_ptr, dx_ptr, T, n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """dx_TK = dproduct · project: what the mapping numbers' gradients say to x. Rounded to bf16 as any product's gradient is there."""
    M: tl.constexpr = 2 * n + n * n
    K: tl.constexpr = n * D
    t = tl.program_id(0) * BT + tl.arange(0, BT)[:, None]
    k = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    m = tl.arange(0, MP)
    dproduct = tl.load(dproduct_ptr + m[None, :] * T + t, mask=(m[None, :] < M) & (t < T), other=0.0)
    project = tl.load(project_ptr + m[:, None] * K + k, mask=(m[:, None] < M) & (k < K), other=0.0)
    dx = tl.dot(dproduct.to(tl.bfloat16), project.to(tl.bfloat16))
    tl.store(dx_ptr + t * K + k, dx, mask=(t < T) & (k < K))


@triton.jit
def read_backward_bf16_kernel(
    x_ptr, x_t, x_n, g_ptr, g_t, g_n, du_ptr, du_t, pre_ptr, res_ptr, shrink_ptr, dx_ptr, T,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx_TnD, in which spread_bf16_kernel left its part, from all else that was made of x.

    In one kernel, the product and these sums ask for two layouts: to change between them for every stream took twice as long.
    """
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    inside = (t[:, None] < T) & (d < D)
    du = tl.load(du_ptr + t[:, None] * du_t + d, mask=inside, other=0.0).to(tl.float32)
    shrink = tl.load(shrink_ptr + t, mask=t < T, other=0.0)[:, None]
    g = ()
    for i in tl.static_range(n):
        g += (tl.load(g_ptr + t[:, None] * g_t + i * g_n + d, mask=inside, other=0.0),)
    for s in tl.static_range(n):
        x = tl.load(x_ptr + t[:, None] * x_t + s * x_n + d, mask=inside, other=0.0).to(tl.float32)
        place = dx_ptr + (t[:, None] * n + s) * D + d
        dx = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        dx += tl.load(pre_ptr + s * T + t, mask=t < T, other=0.0)[:, None] * du - shrink * x
        for i in tl.static_range(n):
            dx += tl.load(res_ptr + (i * n + s) * T + t, mask=t < T, other=0.0)[:, None] * g[i].to(tl.float32)
        tl.store(place, dx, mask=inside)


@triton.jit
def project_backward_bf16_kernel(
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
        )
        high, low = split(
            tl.load(dproduct_ptr + m[:, None] * T + t[None, :], mask=(m[:, None] < M) & (t[None, :] < T), other=0.0)
        )
        total = tl.dot(low, x, total)
        total = tl.dot(high, x, total)
    place = (tl.program_id(1) * M + m[:, None]) * (n * D) + s * D + d[None, :]
    tl.store(parts_ptr + place, total, mask=(m[:, None] < M) & (d[None, :] < D))
