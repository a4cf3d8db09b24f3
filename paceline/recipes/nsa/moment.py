"""Where the newest token of decoding is, as all layers have to know it: its position on the device, and RoPE's angles there.

moment = build_moment(position_1, pattern, head_width, dtype)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.rotary import Rotation, build_rotation


@dataclass(frozen=True)
class Moment:
    """All rows have the same length."""

    position_1: Tensor
    """counts from 0"""
    rotation: Rotation
    """(1, 1, half): of the token"""
    begin_rotation: Rotation
    """(1, 1, half): of the first token of the compressed block that ends with it, where one does"""


def build_moment(position_1: Tensor, pattern: Pattern, head_width: int, dtype: torch.dtype) -> Moment:
    """Nothing here waits for the device."""
    offsets_2 = torch.arange(2, device=position_1.device) * (1 - pattern.block)
    both = build_rotation((position_1 + offsets_2)[None], head_width, dtype)
    here, begin = (Rotation(both.cosine[:, i : i + 1], both.sine[:, i : i + 1]) for i in range(2))
    return Moment(position_1, here, begin)
