"""The convolution that tells wav2vec2's frames where they are, computed as one matrix product for each group of channels.

    layer = PositionLayer(encoder.pos_conv_embed)          # in its place; its parameters keep their names
    hidden_BTW = hidden_BTW + layer(hidden_BTW)

Its kernel is as long as many rows are (128 frames), and libraries' convolutions for that are slow: on an H200 they took half of a training
step of wav2vec2-base. Here P frames that follow each other are made at once, from the P + K - 1 that they look at; the matrix for that holds
the kernel P times, each time one frame further on. For K = 128 and P = 32 that is a quarter more to multiply than there has to be.

Shapes: B rows, T frames, W width; G groups of C channels each, K kernel, P frames of a piece, N pieces of all rows, J = P + K - 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

_SHARE = 4
"""A piece is this part of the kernel: shorter ones copy more of the frames, longer ones more zeros of the matrix."""
_SHORTEST = 8


class PositionLayer(nn.Module):
    """Frames in, what is added to them out."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.conv = original.conv
        self.activation = original.activation

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        (kernel,), groups = self.conv.kernel_size, self.conv.groups
        rows, length, width = hidden_BTW.shape
        size = max(_SHORTEST, kernel // _SHARE)
        pieces = -(-length // size)
        # Before the first frame as many as wav2vec2 has there; after the last as many as the last piece looks at.
        before, reach = kernel // 2, size + kernel - 1
        padded_BTW = pad(hidden_BTW, (0, 0, before, (pieces - 1) * size + reach - before - length))
        seen_BNWJ = padded_BTW.unfold(1, reach, size)
        seen_BNGCJ = seen_BNWJ.reshape(rows, pieces, groups, -1, reach)
        seen_GNX = seen_BNGCJ.permute(2, 0, 1, 4, 3).reshape(groups, rows * pieces, -1)
        made_GNX = torch.bmm(seen_GNX, self._spread(self.conv.weight, size).to(seen_GNX.dtype))
        made_BTW = made_GNX.view(groups, rows, pieces, size, -1).permute(1, 2, 3, 0, 4).reshape(rows, -1, width)
        activated_BTW: Tensor = self.activation(made_BTW[:, :length] + self.conv.bias)
        return activated_BTW

    def _spread(self, weight_WCK: Tensor, size: int) -> Tensor:
        """(G, J · C, P · C): what each of the frames that a piece looks at gives to each frame of it."""
        width, channels, kernel = weight_WCK.shape
        weight_GOCK = weight_WCK.reshape(width // channels, channels, channels, kernel)
        reach = size + kernel - 1
        # Window q of the padded kernel begins q further on: it is that of the frame P - 1 - q.
        windows_GOCPJ = pad(weight_GOCK, (size - 1, size - 1)).unfold(3, reach, 1).flip(3)
        return windows_GOCPJ.permute(0, 4, 2, 3, 1).flatten(3, 4).flatten(1, 2)
