"""Keys or values made into one per block, on the GPU: cut into blocks by a kernel, and φ as compression.py has it.

keys_BNGD = compress(states_BTGD, compression, frame)    # not turned yet
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.library import custom_op

from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.kernels.fast_frame import fast
from paceline.recipes.nsa.pattern import Frame

_TOKENS = 32
"""whose gradients one program sums"""


def compress(states_BTGD: Tensor, compression: Compression, frame: Frame) -> Tensor:
    """(B, N, G, D): one key or value per slot, not turned yet."""
    _, T, _, D = states_BTGD.shape
    # One of the projections that lie side by side is read where it is: a copy of it would be one more pass over memory.
    stride = states_BTGD.stride(1)
    if states_BTGD.stride() != (T * stride, stride, D, 1):
        states_BTGD = states_BTGD.contiguous()
    flat, mean = _cut(states_BTGD, frame.ends_BN, fast(frame).cover_BTc, compression.block)
    return compression.join(flat, mean)


@custom_op("paceline_nsa::cut", mutates_args=())
def _cut(states: Tensor, ends: Tensor, cover: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(B, N, G, l · D) and (B, N, G, D): the tokens of each slot's block, and their mean. `cover` is for the gradients."""
    from paceline.recipes.nsa.kernels.cut_kernels import nsa_cut_kernel

    B, T, G, D = states.shape
    # Of one token alone the stride may be anything.
    stride = states.stride(1) if T > 1 else states.stride(0)
    N = ends.shape[1]
    flat, mean = _new_cut(states, ends, cover, block)
    padded = 1 << (block - 1).bit_length()
    nsa_cut_kernel[(N, B * G)](states, ends, flat, mean, T, N, STRIDE=stride, G=G, D=D, L=block, LP=padded, num_warps=2)
    return flat, mean


def _new_cut(states: Tensor, ends: Tensor, cover: Tensor, block: int) -> tuple[Tensor, Tensor]:
    B, _, G, D = states.shape
    N = ends.shape[1]
    return states.new_empty((B, N, G, block * D)), states.new_empty((B, N, G, D))


_cut.register_fake(_new_cut)


@custom_op("paceline_nsa::cut_gradient", mutates_args=())
def _cut_gradient(of_flat: Tensor, of_mean: Tensor, cover: Tensor, block: int) -> Tensor:
    """Reads, for each token, its place in the blocks that it lies in: torch's own adds by atomics, in any order."""
    from paceline.recipes.nsa.kernels.cut_kernels import nsa_cut_gradient_kernel

    B, N, G, D = of_mean.shape
    T, covers = cover.shape[1:]
    grad = _new_gradient(of_flat, of_mean, cover, block)
    nsa_cut_gradient_kernel[(-(-T // _TOKENS), B * G)](
        of_flat, of_mean, cover, grad, T, N, G=G, D=D, L=block, COVERS=covers, ROWS=_TOKENS, num_warps=2
    )
    return grad


def _new_gradient(of_flat: Tensor, of_mean: Tensor, cover: Tensor, block: int) -> Tensor:
    B, _, G, D = of_mean.shape
    return of_mean.new_empty((B, cover.shape[1], G, D))


_cut_gradient.register_fake(_new_gradient)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, cover, ctx.block = inputs
    ctx.save_for_backward(cover)


def _backward(ctx: Any, of_flat: Tensor, of_mean: Tensor) -> Any:
    (cover,) = ctx.saved_tensors
    return _cut_gradient(of_flat.contiguous(), of_mean.contiguous(), cover, ctx.block), None, None, None


_cut.register_autograd(_backward, setup_context=_keep)
