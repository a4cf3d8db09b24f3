"""Where mHC's streams begin and end on a GPU: what Streams in hyper.py computes, by kernels that read the streams once each.

    x_TnD = fused_open(hidden_TD, offset_nD, torch.float32)      # a stream is hidden plus its offset
    hidden_TD = fused_close(x_TnD, weight_n)                     # the streams' weighted mean

Torch's own backward of the two took 320 µs for 25,600 tokens in 4 streams of width 128 on an H200, a tenth of a step.
Shapes as in hyper.py; for what hyper_fused.fused_available says yes to.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.recipes.sasrec.hyper_fused import Tile, lay_rows
from paceline.recipes.sasrec.launches import plan_parts

if TYPE_CHECKING:
    from types import ModuleType

_TILE = Tile(4, 128, 1)
"""one warp, in which an offset's tile lies as a stream's does"""
_MOST_PARTS = 3200
"""programs that share the tokens where the parameters' gradients are summed"""


def fused_open(hidden_TD: Tensor, offset_nD: Tensor, dtype: torch.dtype) -> Tensor:
    """(T, n, D) in `dtype`."""
    x_TnD: Tensor = _Open.apply(hidden_TD, offset_nD, dtype)  # type: ignore[no-untyped-call]
    return x_TnD


def fused_close(x_TnD: Tensor, weight_n: Tensor) -> Tensor:
    """(T, D), in the streams' type."""
    mean_TD: Tensor = _Close.apply(x_TnD, weight_n)  # type: ignore[no-untyped-call]
    return mean_TD


class _Open(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, offset_nD: Tensor, dtype: torch.dtype) -> Tensor:
        hidden_TD, offset_nD = lay_rows(hidden_TD), offset_nD.contiguous()
        (T, D), n = hidden_TD.shape, len(offset_nD)
        x_TnD = torch.empty(T, n, D, dtype=dtype, device=hidden_TD.device)
        _kernels().open_kernel[(_TILE.grid(T), _TILE.columns(D))](
            hidden_TD, hidden_TD.stride(0), offset_nD, x_TnD, T, n=n, D=D, **_TILE.options(D)
        )
        ctx.dtype = hidden_TD.dtype
        return x_TnD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_TnD: Tensor) -> tuple[Tensor, Tensor, None]:
        g_TnD = lay_rows(g_TnD)
        T, n, D = g_TnD.shape
        parts = plan_parts(_TILE.grid(T), _MOST_PARTS)
        dhidden_TD = torch.empty(T, D, dtype=ctx.dtype, device=g_TnD.device)
        parts_PnD = torch.empty(parts, n, D, dtype=torch.float32, device=g_TnD.device)
        _kernels().open_backward_kernel[(parts, _TILE.columns(D))](
            g_TnD, *g_TnD.stride()[:2], dhidden_TD, parts_PnD, T, n=n, D=D, **_TILE.options(D)
        )
        return dhidden_TD, parts_PnD.sum(0), None


class _Close(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TnD: Tensor, weight_n: Tensor) -> Tensor:
        x_TnD, weight_n = lay_rows(x_TnD), weight_n.contiguous()
        T, n, D = x_TnD.shape
        mean_TD = torch.empty(T, D, dtype=x_TnD.dtype, device=x_TnD.device)
        _kernels().close_kernel[(_TILE.grid(T), _TILE.columns(D))](
            x_TnD, *x_TnD.stride()[:2], weight_n, mean_TD, T, n=n, D=D, **_TILE.options(D)
        )
        ctx.save_for_backward(x_TnD, weight_n)
        return mean_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_TD: Tensor) -> tuple[Tensor, Tensor]:
        x_TnD, weight_n = ctx.saved_tensors
        g_TD = lay_rows(g_TD)
        T, n, D = x_TnD.shape
        parts, columns = plan_parts(_TILE.grid(T), _MOST_PARTS), _TILE.columns(D)
        dx_TnD = torch.empty(T, n, D, dtype=x_TnD.dtype, device=x_TnD.device)
        parts_Pn = torch.empty(parts * columns, n, dtype=torch.float32, device=x_TnD.device)
        _kernels().close_backward_kernel[(parts, columns)](
            x_TnD, *x_TnD.stride()[:2], g_TD, g_TD.stride(0), weight_n, dx_TnD, parts_Pn, T,
            n=n, D=D, **_TILE.options(D),
        )  # fmt: skip
        return dx_TnD, parts_Pn.sum(0)


@cache
def _kernels() -> ModuleType:
    from paceline.recipes.sasrec import hyper_ends_kernels

    return hyper_ends_kernels
