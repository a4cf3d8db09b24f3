# mypy: ignore-errors
"""The GPU kernels of where mHC's streams begin and end, in Triton; hyper_kernels.py says how things lie in memory.

hyper_ends.py launches them; it alone imports this file, and only where Triton is. Sums over tokens end as one part per program.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T"])
def open_kernel(
    hidden_ptr, hidden_t, offset_ptr, x_ptr, T, n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """x_TnD = hidden + offset."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)[:, None]
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    inside = (t < T) & (d < D)
    hidden = tl.load(hidden_ptr + t * hidden_t + d, mask=inside, other=0.0).to(tl.float32)
    for s in tl.static_range(n):
        offset = tl.load(offset_ptr + s * D + d, mask=d < D, other=0.0)
        tl.store(x_ptr + (t * n + s) * D + d, hidden + offset, mask=inside)


@triton.jit
def open_backward_kernel(
    g_ptr, g_t, g_n, dhidden_ptr, parts_ptr, T, n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """dhidden_TD = Σ g over the streams, parts_PnD = Σ g over this program's tokens."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    sums = ()
    for _ in tl.static_range(n):
        sums += (tl.zeros([BT, BD], tl.float32),)
    last = (T - 1) // BT * BT
    for behind in range(program * BT, T, programs * BT):
        t = last - behind + tl.arange(0, BT)[:, None]
        inside = (t < T) & (d < D)
        dhidden = tl.zeros([BT, BD], tl.float32)
        larger = ()
        for s in tl.static_range(n):
            g = tl.load(g_ptr + t * g_t + s * g_n + d, mask=inside, other=0.0).to(tl.float32)
            dhidden += g
            larger += (sums[s] + g,)
        sums = larger
        tl.store(dhidden_ptr + t * D + d, dhidden, mask=inside)
    for s in tl.static_range(n):
        tl.store(parts_ptr + (program * n + s) * D + d, tl.sum(sums[s], 0)[None, :], mask=d < D)


@triton.jit(do_not_specialize=["T"])
def close_kernel(
    x_ptr, x_t, x_n, weight_ptr, mean_ptr, T, n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """mean_TD = Σ weight · x over the streams."""
    t = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT + tl.arange(0, BT)[:, None]
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    inside = (t < T) & (d < D)
    mean = tl.zeros([BT, BD], tl.float32)
    for s in tl.static_range(n):
        x = tl.load(x_ptr + t * x_t + s * x_n + d, mask=inside, other=0.0).to(tl.float32)
        mean += tl.load(weight_ptr + s) * x
    tl.store(mean_ptr + t * D + d, mean, mask=inside)


@triton.jit
def close_backward_kernel(
    x_ptr, x_t, x_n, g_ptr, g_t, weight_ptr, dx_ptr, parts_ptr, T,
    n: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx_TnD = weight · g, parts_Pn = Σ g · x over this program's tokens and columns."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    sums = ()
    for _ in tl.static_range(n):
        sums += (tl.zeros([BT, BD], tl.float32),)
    for first in range(program * BT, T, programs * BT):
        t = first + tl.arange(0, BT)[:, None]
        inside = (t < T) & (d < D)
        g = tl.load(g_ptr + t * g_t + d, mask=inside, other=0.0).to(tl.float32)
        larger = ()
        for s in tl.static_range(n):
            x = tl.load(x_ptr + t * x_t + s * x_n + d, mask=inside, other=0.0).to(tl.float32)
            larger += (sums[s] + g * x,)
            tl.store(dx_ptr + (t * n + s) * D + d, tl.load(weight_ptr + s) * g, mask=inside)
        sums = larger
    for s in tl.static_range(n):
        total = tl.sum(tl.sum(sums[s], 1), 0)
        tl.store(parts_ptr + (program * tl.num_programs(1) + tl.program_id(1)) * n + s, total)
