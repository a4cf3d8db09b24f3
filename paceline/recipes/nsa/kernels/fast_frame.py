"""What the kernels have to know about the documents of a batch, worked out once for all layers, in 32 bits.

frame = lay_out(build_frame(positions_BT, pattern, head_width, dtype), pattern)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.recipes.nsa.kernels.range_attention import Stretch, build_stretch
from paceline.recipes.nsa.kernels.tiles import BUILT_IN, Tiles
from paceline.recipes.nsa.pattern import Frame, Pattern


@dataclass(frozen=True)
class FastFrame(Frame):
    """A frame, and what follows from it."""

    compressed: Stretch
    """the slots that a query sees"""
    window: Stretch
    """the tokens in its window"""
    past: Stretch
    """the tokens of its document up to itself"""
    owner_BT: Tensor
    """the first token of the selection block that a token lies in"""
    position_BT: Tensor
    """in the document"""
    after_BT: Tensor
    """the token after the document"""
    cover_BTc: Tensor
    """the compressed blocks that a token lies in, as indices into (slots × tokens of a block); -1 for none"""
    tiles: Tiles = BUILT_IN
    """what the kernels are launched with"""


def lay_out(frame: Frame, pattern: Pattern, tiles: Tiles = BUILT_IN) -> FastFrame:
    """Nothing here waits for the device."""
    length, num_slots = frame.positions_BT.shape[1], frame.ends_BN.shape[1]
    index_T = torch.arange(length, device=frame.positions_BT.device)
    starts, positions = frame.starts_BT, frame.positions_BT
    seen = _narrow(index_T + 1).expand_as(starts).contiguous()
    # The token after a document is the next at which one begins.
    begins = torch.where(positions == 0, index_T, length)
    after = F.pad(begins, (0, 1), value=length)[:, 1:].flip(1).cummin(1).values.flip(1)
    return FastFrame(
        positions,
        starts,
        frame.ends_BN,
        frame.first_BT,
        frame.seen_BT,
        frame.rotation,
        frame.block_rotation,
        build_stretch(_narrow(frame.first_BT), _narrow(frame.seen_BT), num_slots),
        build_stretch(_narrow(torch.maximum(starts, index_T - pattern.window + 1)), seen, length),
        build_stretch(_narrow(starts), seen, length),
        _narrow(index_T - positions % pattern.selection_block),
        _narrow(positions),
        _narrow(after),
        _find_cover(frame, pattern),
        tiles,
    )


def _find_cover(frame: Frame, pattern: Pattern) -> Tensor:
    """A token lies in at most l / d blocks; they are blocks only if they end in its document."""
    length, num_slots = frame.positions_BT.shape[1], frame.ends_BN.shape[1]
    places = []
    for back in range(pattern.block // pattern.stride):
        number = frame.positions_BT // pattern.stride - back
        slot = (frame.first_BT + number).clamp(0, num_slots - 1)
        end = frame.starts_BT + number * pattern.stride + pattern.block - 1
        is_block = (number >= 0) & (frame.ends_BN.gather(1, slot) == end) & (end < length)
        inside = frame.positions_BT - number * pattern.stride
        places.append(torch.where(is_block, slot * pattern.block + inside, -1))
    return torch.stack(places, dim=-1)


def _narrow(index: Tensor) -> Tensor:
    return index.int().contiguous()


def fast(frame: Frame) -> FastFrame:
    """The frame that `lay_out` made."""
    assert isinstance(frame, FastFrame)
    return frame
