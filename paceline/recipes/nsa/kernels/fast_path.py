"""The stages on a GPU, with memory linear in length and sums in a fixed order: the same input gives the same bits.

Each stage can be exchanged by itself (stages.py). Kernels are in Triton, some in Gluon, the layer beneath it; they take heads of 64 or 128
numbers, 1 to 16 of them a group. They are launched by operators of torch (`paceline_nsa::`): torch.compile calls those as
they are, and compiles all around them in one piece.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from paceline.recipes.nsa.kernels import past_attention
from paceline.recipes.nsa.kernels.chosen_attention import attend_chosen
from paceline.recipes.nsa.kernels.fast_cache import FastCache
from paceline.recipes.nsa.kernels.fast_compression import compress
from paceline.recipes.nsa.kernels.fast_frame import fast, lay_out
from paceline.recipes.nsa.kernels.fast_mix import mix
from paceline.recipes.nsa.kernels.fast_selection import select
from paceline.recipes.nsa.kernels.past_attention import attend_past
from paceline.recipes.nsa.kernels.range_attention import attend_range
from paceline.recipes.nsa.kernels.tiles import Tiles
from paceline.recipes.nsa.pattern import Frame, Pattern
from paceline.recipes.nsa.stages import Stages


def attend_compressed(
    query_BTHD: Tensor, keys_BNGD: Tensor, values_BNGD: Tensor, frame: Frame
) -> tuple[Tensor, Tensor]:
    return attend_range(query_BTHD, keys_BNGD, values_BNGD, fast(frame).compressed, "compressed", fast(frame).tiles)


def attend_selected(
    query_BTHD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor, blocks_BTGn: Tensor, frame: Frame, pattern: Pattern
) -> Tensor:
    if pattern.num_selection(query_BTHD.shape[1]) <= past_attention.MOST_BLOCKS:
        past, tiles = fast(frame).past, fast(frame).tiles
        return attend_past(query_BTHD, keys_BTGD, values_BTGD, blocks_BTGn, past, pattern.selection_block, tiles)
    first = frame.starts_BT[..., None, None] + blocks_BTGn * pattern.selection_block
    chosen = torch.where(blocks_BTGn < 0, -1, first)
    owner, tiles = fast(frame).owner_BT, fast(frame).tiles
    return attend_chosen(query_BTHD, keys_BTGD, values_BTGD, chosen, owner, pattern.selection_block, tiles)


def attend_window(query_BTHD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
    return attend_range(query_BTHD, keys_BTGD, values_BTGD, fast(frame).window, "window", fast(frame).tiles)[0]


FAST = Stages(lay_out, compress, attend_compressed, select, attend_selected, attend_window, mix, FastCache)


def build_fast(tiles: Tiles) -> Stages:
    """With these tiles: they travel in the frame, which every stage is given."""
    return replace(FAST, lay_out=partial(lay_out, tiles=tiles))


KERNELS = {"compressed": "nsa_range", "selected": "nsa_chosen", "window": "nsa_range"}
"""how the names of the kernels begin that compute each branch"""
