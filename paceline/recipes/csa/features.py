"""wav2vec2's first layers, which make frames from samples, computed as matrix products over frames that lie one after another.

    layer = FrameLayer(original)                   # in its place in wav2vec2's list; its parameters keep their names
    frames_BTC = layer(frames_BTC)                 # T is a multiple of the layer's stride

A convolution of kernel k and stride s is a product of blocks of s frames, and one of each next block's first k - s frames, added to it. All
rows are one matrix: where a row ends, a block's next one is the next row's first, so the last frame of a row may be made of both. Such a
frame is always one that a convolution would not have made: `count_frames` does not count it, and nobody looks at it.

Shapes: B rows, T frames, C channels, O channels that come out, K samples of a window; N blocks, of all rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import pad

from paceline.recipes.csa.pooling import mask_of

_ALIGNED = 8
"""numbers of a row of a matrix, below which tensor cores stand by"""


class FrameLayer(nn.Module):
    """A convolution, a normalisation over channels where there is one, and an activation."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.conv = original.conv
        if hasattr(original, "layer_norm"):
            self.layer_norm = original.layer_norm
        self.activation = original.activation

    def forward(self, frames_BTC: Tensor) -> Tensor:
        (stride,), weight_OCK = self.conv.stride, self.conv.weight
        rows, length, channels = frames_BTC.shape
        frames_BTC, weight_OCK = _for_products(frames_BTC, weight_OCK)
        blocks_ND = frames_BTC.reshape(rows * length // stride, stride * channels)
        parts = [part.transpose(1, 2).flatten(1) for part in torch.split(weight_OCK, stride, 2)]
        made_NO: Tensor = BlockProduct.apply(blocks_ND, *parts)  # type: ignore[no-untyped-call]
        made_BTO = made_NO.view(rows, length // stride, -1)
        if self.conv.bias is not None:
            made_BTO = made_BTO + self.conv.bias
        if hasattr(self, "layer_norm"):
            made_BTO = self.layer_norm(made_BTO)
        activated_BTO: Tensor = self.activation(made_BTO)
        return activated_BTO


class SampleLayer(nn.Module):
    """The first layer of those that normalise each channel over time: over the frames that are there, and no others.

    What comes out of its filters is never passed over for that: mean and variance of a channel follow from those of the windows, K × K
    numbers a row, and normalising is another filter for each row.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.conv = original.conv
        self.layer_norm = original.layer_norm
        self.activation = original.activation

    def forward(self, audio_BS: Tensor, samples_B: Tensor) -> Tensor:
        """(B, T, O); S is a multiple of the stride."""
        (kernel,), (stride,) = self.conv.kernel_size, self.conv.stride
        windows_BTK = pad(audio_BS, (0, max(0, kernel - stride))).unfold(1, kernel, stride)
        filters_BKO, offsets_BO = self._normalise(windows_BTK, (samples_B - kernel) // stride + 1)
        missing = -kernel % _ALIGNED
        windows_BTK, filters_BKO = _for_products(pad(windows_BTK, (0, missing)), pad(filters_BKO, (0, 0, 0, missing)))
        made_BTO = torch.baddbmm(offsets_BO[:, None].to(filters_BKO.dtype), windows_BTK, filters_BKO)
        activated_BTO: Tensor = self.activation(made_BTO)
        return activated_BTO

    def _normalise(self, windows_BTK: Tensor, counts_B: Tensor) -> tuple[Tensor, Tensor]:
        """The filters of each row, and what is added to what they make."""
        with torch.autocast(windows_BTK.device.type, enabled=False):
            # In float64: a filter for what is weak in this sound takes small differences of large variances.
            counts_B1 = counts_B[:, None].double()
            mask_BT1 = mask_of(counts_B, windows_BTK.shape[1])[..., None]
            there_BTK = windows_BTK.double() * mask_BT1
            means_BK = there_BTK.sum(1) / counts_B1
            centred_BTK = (there_BTK - means_BK[:, None]) * mask_BT1
            variances_BKK = centred_BTK.transpose(1, 2) @ centred_BTK / counts_B1[..., None]
            filters_KO = self.conv.weight[:, 0].double().T
            variances_BO = ((variances_BKK @ filters_KO) * filters_KO).sum(1).clamp(min=0)
            scales_BO = torch.rsqrt(variances_BO + self.layer_norm.eps) * self.layer_norm.weight
            filters_BKO = filters_KO * scales_BO[:, None]
            offsets_BO = self.layer_norm.bias - (means_BK[:, None] @ filters_BKO)[:, 0]
            if self.conv.bias is not None:
                offsets_BO = (
                    offsets_BO + 0 * self.conv.bias
                )  # taken away again by the mean; its gradient is zero, not missing
            dtype = self.conv.weight.dtype
            return filters_BKO.to(dtype), offsets_BO.to(dtype)


class BlockProduct(torch.autograd.Function):
    """The sum over j of  the j-th next block's first columns @ part j, transposed; blocks that are beyond the end count as zero."""

    @staticmethod
    def forward(ctx: FunctionCtx, blocks_ND: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(blocks_ND, *parts)
        made_NO = blocks_ND[:, : parts[0].shape[1]] @ parts[0].T
        for number, part in enumerate(parts[1:], start=1):
            made_NO[:-number].addmm_(blocks_ND[number:, : part.shape[1]], part.T)
        return made_NO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_made_NO: Tensor) -> tuple[Tensor | None, ...]:
        blocks_ND, *parts = ctx.saved_tensors
        by_blocks_ND = None
        if ctx.needs_input_grad[0]:
            by_blocks_ND = by_made_NO @ pad(parts[0], (0, blocks_ND.shape[1] - parts[0].shape[1]))
            for number, part in enumerate(parts[1:], start=1):
                by_blocks_ND[number:, : part.shape[1]].addmm_(by_made_NO[:-number], part)
        by_parts = [
            (by_made_NO[:-number] if number else by_made_NO).T @ blocks_ND[number:, : part.shape[1]]
            for number, part in enumerate(parts)
        ]
        return by_blocks_ND, *by_parts


def _for_products(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In the type that autocast would have them multiplied in."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor.to(dtype) for tensor in tensors)
