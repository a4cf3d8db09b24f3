"""LayerNorm, on a GPU by kernels of its own: torch's take half of a small model's step, above all for the weights' gradients.

    norm = Norm(50)       # parameters and numbers of nn.LayerNorm(50)
    norm(hidden_TD)       # under autocast on a GPU in autocast's dtype: the product that follows need not cast
    Norm(50, keeps_fp32=True)   # for a result that is added up further: in fp32, as F.layer_norm gives it

Without a GPU or Triton it is nn.LayerNorm. tests/gpu/test_norm_kernels.py prints how long both take.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from paceline.recipes.sasrec.launches import count_programs, pad_block, plan_parts, triton_is_here

if TYPE_CHECKING:
    from types import ModuleType

_WIDEST = 1024
"""a row is held in the registers of one program"""
_TILE = 2048
"""numbers a program holds of a tensor at a time"""
_WARPS = 4
_MOST_PARTS = 512
"""programs that share the rows where the weights' gradients are summed: total_kernel holds all their parts of a column at once"""


class Norm(nn.LayerNorm):
    """nn.LayerNorm over the last dimension, with the same state_dict."""

    def __init__(self, width: int, keeps_fp32: bool = False) -> None:
        super().__init__(width)
        self._keeps_fp32 = keeps_fp32

    def forward(self, input: Tensor) -> Tensor:
        # An input of another width is torch's to refuse.
        if input.shape[-1:] != self.normalized_shape or not fused_available(input):
            return super().forward(input)
        dtype = input.dtype
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.float32 if self._keeps_fp32 else torch.get_autocast_dtype("cuda")
        return fused_norm(input, self.weight, self.bias, self.eps, dtype)


def fused_available(x: Tensor) -> bool:
    """Whether the kernels can take this input (…, D); where not, F.layer_norm does."""
    # The kernels count in 32 bits, and a little past the end.
    fits = x.shape[-1] <= _WIDEST and 0 < x.numel() <= 2**30
    return fits and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16, torch.float16) and triton_is_here()


def fused_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """F.layer_norm over the last dimension, computed in fp32 and given in `dtype`."""
    y: Tensor = _Norm.apply(x, weight_D, bias_D, epsilon, dtype)  # type: ignore[no-untyped-call]
    return y


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        x, D = x.contiguous(), x.shape[-1]
        T = x.numel() // D
        y = torch.empty_like(x, dtype=dtype)
        mean_T = torch.empty(T, dtype=torch.float32, device=x.device)
        inverse_T = torch.empty_like(mean_T)
        tile = _tile(D)
        _kernels().forward_kernel[(count_programs(T, tile["BT"]),)](
            x, weight_D, bias_D, y, mean_T, inverse_T, T, epsilon, D=D, **tile
        )
        ctx.save_for_backward(x, weight_D, mean_T, inverse_T)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_D, mean_T, inverse_T = ctx.saved_tensors
        dy, D = dy.contiguous(), x.shape[-1]
        tile = _tile(D)
        parts = plan_parts(count_programs(len(mean_T), tile["BT"]), _MOST_PARTS)
        dx, dweight_D, dbias_D = torch.empty_like(x), torch.empty_like(weight_D), torch.empty_like(weight_D)
        parts_2PD = torch.empty(2, parts, D, dtype=torch.float32, device=x.device)
        _kernels().backward_kernel[(parts,)](
            x, dy, weight_D, mean_T, inverse_T, dx, parts_2PD, len(mean_T), D=D, **tile
        )
        B = 8
        _kernels().total_kernel[(count_programs(D, B),)](
            parts_2PD, dweight_D, dbias_D, parts, D=D, BP=_MOST_PARTS, B=B, num_warps=8
        )
        return dx, dweight_D, dbias_D, None, None


def _tile(width: int) -> dict[str, int]:
    """What a program holds: whole rows, several of them where they are short."""
    held = pad_block(width)
    return {"BT": _TILE // held, "BD": held, "num_warps": _WARPS}


@cache
def _kernels() -> ModuleType:
    from paceline.recipes.sasrec import norm_kernels

    return norm_kernels
