"""The stages on a GPU, with memory linear in length and sums in a fixed order: the same input gives the same bits.

Each stage can be exchanged by itself (stages.py). Kernels are in Triton; they take heads of 64 or 128 numbers, 1 to 16 of them a group.
torch.compile leaves them alone: it would compile each kernel anew for every call, and fails at some; all around them is compiled.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.recipes.nsa.chosen_attention import attend_chosen
from paceline.recipes.nsa.fast_cache import FastCache
from paceline.recipes.nsa.fast_compression import compress
from paceline.recipes.nsa.fast_frame import fast, lay_out
from paceline.recipes.nsa.fast_mix import mix
from paceline.recipes.nsa.fast_selection import select
from paceline.recipes.nsa.pattern import Frame, Pattern
from paceline.recipes.nsa.range_attention import attend_range
from paceline.recipes.nsa.stages import Stages


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


FAST = Stages(
    lay_out, compress, attend_compressed, select, attend_selected, attend_window, mix, FastCache, can_compile=False
)

KERNELS = {"compressed": "nsa_range", "selected": "nsa_chosen", "window": "nsa_range"}
"""how the names of the kernels begin that compute each branch"""
