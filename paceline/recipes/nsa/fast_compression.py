"""Keys or values made into one per block, on the GPU: cut into blocks by a kernel, and φ as compression.py has it.

keys_BNGD = compress(states_BTGD, compression, frame)    # not turned yet
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.fast_frame import fast
from paceline.recipes.nsa.pattern import Frame

_TOKENS = 32
"""whose gradients one program sums"""


def compress(states_BTGD: Tensor, compression: Compression, frame: Frame) -> Tensor:
    """(B, N, G, D): one key or value per slot, not turned yet."""
    flat, mean = _Cut.apply(states_BTGD, frame.ends_BN, fast(frame).cover_BTc, compression.block)  # type: ignore[no-untyped-call]
    return compression.join(flat, mean)


class _Cut(Function):
    """(B, N, G, l · D) and (B, N, G, D): the tokens of each slot's block, and their mean.

    Backward reads, for each token, its place in the blocks that it lies in: torch's own adds by atomics, in any order.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, ends: Tensor, cover: Tensor, block: int) -> Any:
        from paceline.recipes.nsa.cut_kernels import nsa_cut_kernel

        B, T, G, D = states.shape
        # One of the projections that lie side by side is read where it is: a copy of it would be one more pass over memory.
        stride = states.stride(1)
        if states.stride() != (T * stride, stride, D, 1):
            states, stride = states.contiguous(), G * D
        N = ends.shape[1]
        flat, mean = states.new_empty((B, N, G, block * D)), states.new_empty((B, N, G, D))
        padded = 1 << (block - 1).bit_length()
        nsa_cut_kernel[(N, B * G)](
            states, ends, flat, mean, T, N, STRIDE=stride, G=G, D=D, L=block, LP=padded, num_warps=2
        )
        ctx.save_for_backward(cover)
        ctx.block = block
        return flat, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_flat: Tensor, of_mean: Tensor) -> Any:
        from paceline.recipes.nsa.cut_kernels import nsa_cut_gradient_kernel

        (cover,) = ctx.saved_tensors
        of_flat, of_mean = of_flat.contiguous(), of_mean.contiguous()
        B, N, G, D = of_mean.shape
        T, covers = cover.shape[1:]
        grad = of_mean.new_empty((B, T, G, D))
        nsa_cut_gradient_kernel[(-(-T // _TOKENS), B * G)](
            of_flat, of_mean, cover, grad, T, N, G=G, D=D, L=ctx.block, COVERS=covers, ROWS=_TOKENS, num_warps=2
        )
        return grad, None, None, None
