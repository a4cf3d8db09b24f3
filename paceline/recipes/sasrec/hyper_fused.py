"""mHC on a GPU: what hyper.py's tensor functions compute, by a few kernels that read the streams once each.

    read_TD, mixed_TnD, post_nT, res_nnT = fused_read(x_TnD, project_MK, gates_3, bias_M, iterations, epsilon)
    x_TnD = fused_write(mixed_TnD, post_nT, res_nnT, layer(read_TD))

`mixed` stands for res · x and holds x: the product is made where it is written. So the gradient of `mixed` is that of the written
streams as it is, and fused_read's backward makes the gradient of x from all its sources in one go. It is of use to fused_write alone.

Shapes as in hyper.py; what is one number per position lies with the positions innermost (post_nT, res_nnT).
benchmarks/mhc_step.py measures it.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.recipes.sasrec.launches import count_programs, pad_block, triton_is_here

if TYPE_CHECKING:
    from types import ModuleType


class Tile(NamedTuple):
    """What one program of a kernel holds, and how it runs."""

    tokens: int
    width: int
    warps: int
    stages: int = 1
    """loads that are under way while another tile is worked on"""

    def options(self, width: int) -> dict[str, int]:
        held = min(self.width, pad_block(width))
        return {"BT": self.tokens, "BD": held, "num_warps": self.warps, "num_stages": self.stages}

    def grid(self, tokens: int) -> int:
        return count_programs(tokens, self.tokens)

    def columns(self, width: int) -> int:
        return count_programs(width, self.width)


TILES = {
    "project": Tile(16, 32, 1),
    "write": Tile(8, 128, 4),
    "write_backward": Tile(4, 32, 1),
    "dots": Tile(4, 32, 1),
    "read_backward": Tile(4, 128, 1),
    "project_backward": Tile(32, 64, 4, 3),
    "project_bf16": Tile(64, 64, 4, 3),
    "dots_bf16": Tile(4, 64, 1),
    "spread_bf16": Tile(64, 128, 4),
    "read_backward_bf16": Tile(8, 128, 4),
    "project_backward_bf16": Tile(64, 64, 4, 3),
}
_TOKENS = 32
"""of a program in which one thread has one token"""
_PARTS = 48
"""programs that share the tokens where the projection's gradient is summed; each leaves a part as large as the projection"""


def fused_available(x_TnD: Tensor) -> bool:
    """Whether the kernels can take these streams; where not, hyper.py's own functions do."""
    # An n × n matrix is unrolled into registers: with n = 8 it no longer fits them, and compiling takes minutes.
    fits = x_TnD.shape[1] in (2, 4) and 0 < x_TnD.numel() < 2**31
    return fits and x_TnD.is_cuda and x_TnD.dtype in (torch.float32, torch.bfloat16, torch.float16) and triton_is_here()


def fused_read(
    x_TnD: Tensor, project_MK: Tensor, gates_3: Tensor, bias_M: Tensor, iterations: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the layer gets to see (T, D), and for fused_write: mixed (T, n, D), post (n, T), res (n, n, T)."""
    result: tuple[Tensor, Tensor, Tensor, Tensor] = _Read.apply(  # type: ignore[no-untyped-call]
        x_TnD, project_MK, gates_3, bias_M, iterations, epsilon
    )
    return result


def fused_write(mixed_TnD: Tensor, post_nT: Tensor, res_nnT: Tensor, y_TD: Tensor) -> Tensor:
    """(T, n, D): the streams mixed, with the layer's result written to each."""
    x_TnD: Tensor = _Write.apply(mixed_TnD, post_nT, res_nnT, y_TD)  # type: ignore[no-untyped-call]
    return x_TnD


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TnD: Tensor, project_MK: Tensor, gates_3: Tensor, bias_M: Tensor, iterations: int, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kernels = _kernels()
        T, n, D = x_TnD.shape
        M = 2 * n + n * n
        x_TnD, project_MK = lay_rows(x_TnD), project_MK.contiguous()
        empty = partial(torch.empty, dtype=torch.float32, device=x_TnD.device)
        raw_MT, inverse_T, pre_nT, post_nT, res_nnT = empty(M, T), empty(T), empty(n, T), empty(n, T), empty(n, n, T)
        scales_InT, read_TD = empty(iterations, n, T), x_TnD.new_empty(T, D)
        tile, project = _choose(x_TnD.dtype, "project")
        project[(tile.grid(T),)](
            x_TnD, *x_TnD.stride()[:2], project_MK, gates_3, bias_M, raw_MT, inverse_T, read_TD, T, epsilon,
            n=n, D=D, **tile.options(D),
        )  # fmt: skip
        kernels.map_kernel[(count_programs(T, _TOKENS),)](
            raw_MT, gates_3, bias_M, pre_nT, post_nT, res_nnT, scales_InT, T, iterations, n=n, BT=_TOKENS, num_warps=1
        )
        ctx.save_for_backward(x_TnD, project_MK, gates_3, bias_M, raw_MT, inverse_T, pre_nT, res_nnT, scales_InT)
        ctx.iterations = iterations
        ctx.mark_non_differentiable(res_nnT)
        return read_TD, x_TnD, post_nT, res_nnT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dread_TD: Tensor, g_TnD: Tensor, dpost_nT: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        kernels = _backward_kernels()
        x_TnD, project_MK, gates_3, bias_M, raw_MT, inverse_T, pre_nT, res_nnT, scales_InT = ctx.saved_tensors
        T, n, D = x_TnD.shape
        M = 2 * n + n * n
        dread_TD, g_TnD, dpost_nT = lay_rows(dread_TD), lay_rows(g_TnD), dpost_nT.contiguous()
        streams = (x_TnD, *x_TnD.stride()[:2], g_TnD, *g_TnD.stride()[:2], dread_TD, dread_TD.stride(0))
        empty = partial(torch.empty, dtype=torch.float32, device=x_TnD.device)

        dpre_nT, dres_nnT = empty(n, T), empty(n, n, T)
        tile = TILES["dots_bf16" if x_TnD.dtype == torch.bfloat16 else "dots"]
        kernels.dots_kernel[(tile.grid(T),)](
            *streams, dpre_nT, dres_nnT, T, n=n, D=D, W=16 // x_TnD.element_size(), **tile.options(D)
        )

        programs = count_programs(T, _TOKENS)
        dproduct_MT, shrink_T, sums_2MP = empty(M, T), empty(T), empty(2, M, programs)
        kernels.map_backward_kernel[(programs,)](
            raw_MT, inverse_T, gates_3, bias_M, dpre_nT, dpost_nT, dres_nnT, res_nnT, scales_InT,
            dproduct_MT, shrink_T, sums_2MP, T, D, ctx.iterations, n=n, BT=_TOKENS, num_warps=1,
        )  # fmt: skip

        tile, project_backward = _choose(x_TnD.dtype, "project_backward")
        parts = min(_PARTS, tile.grid(T))
        parts_PMK, dproject_MK, dsmall = empty(parts, *project_MK.shape), empty(*project_MK.shape), empty(M + 3)
        project_backward[(n * tile.columns(D), parts)](
            *streams[:3], dproduct_MT, parts_PMK, T, n=n, D=D, **tile.options(D)
        )
        KM, B = project_MK.numel(), 128
        kernels.total_kernel[(count_programs(KM, B) + M + 3,)](
            parts_PMK, parts, sums_2MP, programs, dproject_MK, dsmall, n=n, KM=KM, B=B, BP=32, num_warps=4
        )

        # Last: what comes next in the backward reads dx, and finds its end in the cache.
        dx_TnD = torch.empty(T, n, D, dtype=x_TnD.dtype, device=x_TnD.device)
        tile, read_backward = _choose(x_TnD.dtype, "read_backward")
        product = [project_MK, dproduct_MT]
        if x_TnD.dtype == torch.bfloat16:
            wide, spread = _choose(x_TnD.dtype, "spread")
            spread[(wide.grid(T), wide.columns(n * D))](*product, dx_TnD, T, n=n, D=D, **wide.options(n * D))
            product = []
        read_backward[(tile.grid(T), tile.columns(D))](
            *streams, *product, pre_nT, res_nnT, shrink_T, dx_TnD, T, n=n, D=D, **tile.options(D)
        )
        return dx_TnD, dproject_MK, dsmall[M:], dsmall[:M], None, None


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixed_TnD: Tensor, post_nT: Tensor, res_nnT: Tensor, y_TD: Tensor) -> Tensor:
        T, n, D = mixed_TnD.shape
        y_TD = lay_rows(y_TD)
        x_TnD = torch.empty(T, n, D, dtype=mixed_TnD.dtype, device=mixed_TnD.device)
        tile = TILES["write"]
        _kernels().write_kernel[(tile.grid(T), tile.columns(D))](
            mixed_TnD, *mixed_TnD.stride()[:2], y_TD, y_TD.stride(0), res_nnT, post_nT, x_TnD, T,
            n=n, D=D, **tile.options(D),
        )  # fmt: skip
        ctx.save_for_backward(post_nT, y_TD)
        return x_TnD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_TnD: Tensor) -> tuple[Tensor | None, ...]:
        post_nT, y_TD = ctx.saved_tensors
        T, n, D = g_TnD.shape
        g_TnD = lay_rows(g_TnD)
        dy_TD, dpost_nT = torch.empty(T, D, dtype=y_TD.dtype, device=y_TD.device), torch.empty_like(post_nT)
        tile = TILES["write_backward"]
        _backward_kernels().write_backward_kernel[(tile.grid(T),)](
            g_TnD, *g_TnD.stride()[:2], y_TD, y_TD.stride(0), post_nT, dy_TD, dpost_nT, T, n=n, D=D, **tile.options(D)
        )
        return g_TnD, dpost_nT, None, dy_TD


@cache
def _kernels() -> ModuleType:
    from paceline.recipes.sasrec import hyper_kernels

    return hyper_kernels


@cache
def _backward_kernels() -> ModuleType:
    from paceline.recipes.sasrec import hyper_backward_kernels

    return hyper_backward_kernels


def _choose(dtype: torch.dtype, name: str) -> tuple[Tile, Any]:
    """The kernel of that name for streams of this type, and its tile."""
    if dtype == torch.bfloat16:
        from paceline.recipes.sasrec import hyper_bf16_kernels

        return TILES[f"{name}_bf16"], getattr(hyper_bf16_kernels, f"{name}_bf16_kernel")
    module = _kernels() if name == "project" else _backward_kernels()
    return TILES[name], getattr(module, f"{name}_kernel")


def lay_rows(tensor: Tensor) -> Tensor:
    """The kernels take any strides but the innermost: a gradient may be one number that was expanded."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
