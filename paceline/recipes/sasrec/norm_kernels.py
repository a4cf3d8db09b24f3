# mypy: ignore-errors
"""The GPU kernels of LayerNorm, in Triton: the forward reads its input once, the backward its input and the gradient once.

norm.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

T rows of width D; a program holds BT of them, whole, in BD ≥ D columns. All arithmetic is fp32, whatever is loaded or stored.
Nothing is summed by atomics: the same input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


# T differs between the last batch of an evaluation and the others: that shall not compile anew.
@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, inverse_ptr, T, eps,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) · inverse · weight + bias; mean_T, and inverse_T = 1 / the standard deviation."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.arange(0, BD)
    inside = (t[:, None] < T) & (d[None, :] < D)
    at = t[:, None] * D + d[None, :]
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / D
    # The mean goes first: E[x²] - mean² loses all digits where the mean is large.
    centred = tl.where(d[None, :] < D, x - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
    tl.store(mean_ptr + t, mean, mask=t < T)
    tl.store(inverse_ptr + t, inverse, mask=t < T)
    tl.store(y_ptr + at, centred * inverse[:, None] * weight[None, :] + bias[None, :], mask=inside)


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    x_ptr, dy_ptr, weight_ptr, mean_ptr, inverse_ptr, dx_ptr, parts_ptr, T,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx of all rows, and of each program's rows the sums of weight's and bias's gradients (2, P, D)."""
    d = tl.arange(0, BD)
    program, programs = tl.program_id(0), tl.num_programs(0)
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    # One sum per row of the tile: what the threads have is added between them once, at the end.
    dweight = tl.zeros([BT, BD], tl.float32)
    dbias = tl.zeros([BT, BD], tl.float32)
    for first in range(program * BT, T, programs * BT):
        t = first + tl.arange(0, BT)
        inside = (t[:, None] < T) & (d[None, :] < D)
        at = t[:, None] * D + d[None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + t, mask=t < T, other=0.0)
        inverse = tl.load(inverse_ptr + t, mask=t < T, other=0.0)
        # Outside the tensor this is no number of meaning, but whatever it is multiplied with is 0 there.
        normal = (x - mean[:, None]) * inverse[:, None]
        dnormal = dy * weight[None, :]
        along = tl.sum(dnormal * normal, 1) / D
        level = tl.sum(dnormal, 1) / D
        dx = (dnormal - level[:, None] - normal * along[:, None]) * inverse[:, None]
        tl.store(dx_ptr + at, dx, mask=inside)
        dweight += dy * normal
        dbias += dy
    tl.store(parts_ptr + program * D + d, tl.sum(dweight, 0), mask=d < D)
    tl.store(parts_ptr + (programs + program) * D + d, tl.sum(dbias, 0), mask=d < D)


@triton.jit(do_not_specialize=["P"])
def total_kernel(
    parts_ptr, dweight_ptr, dbias_ptr, P, D: tl.constexpr, BP: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    """The parts of the weights' gradients (2, P, D) added, P ≤ BP; a program has B columns of both."""
    p = tl.arange(0, BP)
    d = tl.program_id(0) * B + tl.arange(0, B)
    inside = (p[:, None] < P) & (d[None, :] < D)
    at = p[:, None] * D + d[None, :]
    dweight = tl.load(parts_ptr + at, mask=inside, other=0.0)
    dbias = tl.load(parts_ptr + P * D + at, mask=inside, other=0.0)
    tl.store(dweight_ptr + d, tl.sum(dweight, 0), mask=d < D)
    tl.store(dbias_ptr + d, tl.sum(dbias, 0), mask=d < D)
