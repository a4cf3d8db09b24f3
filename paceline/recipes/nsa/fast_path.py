"""The stages on a GPU, with memory linear in length and sums in a fixed order: the same input gives the same bits.

Each stage can be exchanged by itself (stages.py). Kernels are in Triton; they take heads of 64 or 128 numbers, 1 to 16 of them a group.
torch.compile leaves them alone: it would compile each kernel anew for every call, and fails at some; all around them is compiled.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from paceline.recipes.nsa.chosen_attention import attend_chosen
from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.fast_frame import fast, lay_out
from paceline.recipes.nsa.fast_selection import select
from paceline.recipes.nsa.pattern import Frame, Pattern
from paceline.recipes.nsa.range_attention import attend_range
from paceline.recipes.nsa.stages import Stages


def compress(states_BTGD: Tensor, compression: Compression, frame: Frame) -> Tensor:
    """(B, N, G, D): one key or value per slot, not turned yet."""
    cut: Tensor = _Cut.apply(states_BTGD, frame.ends_BN, fast(frame).cover_BTc, compression.block)  # type: ignore[no-untyped-call]
    compressed: Tensor = compression(cut.transpose(2, 3))
    return compressed


def attend_compressed(
    query_BTHD: Tensor, keys_BNGD: Tensor, values_BNGD: Tensor, frame: Frame
) -> tuple[Tensor, Tensor]:
    out, logsum = attend_range(query_BTHD, keys_BNGD, values_BNGD, fast(frame).compressed)
    return out, torch.where(logsum.isinf(), -math.inf, logsum * math.log(2))


def attend_selected(
    query_BTHD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor, blocks_BTGn: Tensor, frame: Frame, pattern: Pattern
) -> Tensor:
    first = frame.starts_BT[..., None, None] + blocks_BTGn * pattern.selection_block
    chosen = torch.where(blocks_BTGn < 0, -1, first)
    return attend_chosen(query_BTHD, keys_BTGD, values_BTGD, chosen, fast(frame).owner_BT, pattern.selection_block)


def attend_window(query_BTHD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
    return attend_range(query_BTHD, keys_BTGD, values_BTGD, fast(frame).window)[0]


FAST = Stages(lay_out, compress, attend_compressed, select, attend_selected, attend_window, can_compile=False)

KERNELS = {"compressed": "nsa_range", "selected": "nsa_chosen", "window": "nsa_range"}
"""how the names of the kernels begin that compute each branch"""


class _Cut(torch.autograd.Function):
    """(B, N, l, G, D): the tokens of each slot's block; of an empty slot some tokens or other, which nobody sees.

    Backward reads, for each token, its place in the blocks that it lies in: torch's own adds by atomics, in any order.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, ends: Tensor, cover: Tensor, block: int) -> Tensor:
        length = states.shape[1]
        inside = torch.arange(1 - block, 1, device=states.device)
        index = (ends[..., None] + inside).clamp_(0, length - 1)
        ctx.save_for_backward(cover)
        rows = torch.arange(len(states), device=states.device)[:, None, None]
        return states[rows, index]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (cover,) = ctx.saved_tensors
        flat = grad.flatten(1, 2)
        rows = torch.arange(len(grad), device=grad.device)[:, None]
        total: Tensor | int = 0
        for place in cover.unbind(-1):
            total = total + flat[rows, place.clamp(min=0)] * (place >= 0)[..., None, None]
        return total, None, None, None
