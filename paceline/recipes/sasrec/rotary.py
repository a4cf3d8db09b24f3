"""Rotary positions: queries and keys are turned by an angle that grows with their position, so that products see distances.

Coordinate c of a head is turned together with coordinate c + half; in a head of odd width the last one is left as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_BASE = 10_000.0


class Rotation(NamedTuple):
    """Cosine and sine of each position's angles, (L, half) in fp32."""

    cosine_LD: Tensor
    sine_LD: Tensor


def build_rotation(length: int, head_width: int, device: torch.device) -> Rotation:
    """Computed in each forward: a table kept as a buffer would travel between ranks in every step."""
    half = head_width // 2
    frequencies_D = _BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / max(1, half))
    angles_LD = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequencies_D
    return Rotation(angles_LD.cos(), angles_LD.sin())


def rotate(states_BHLD: Tensor, rotation: Rotation) -> Tensor:
    """The same queries or keys, turned; computed in fp32, returned in their own type."""
    half = rotation.cosine_LD.shape[1]
    wide_BHLD = states_BHLD.float()
    first, second, rest = wide_BHLD[..., :half], wide_BHLD[..., half : 2 * half], wide_BHLD[..., 2 * half :]
    turned_first = first * rotation.cosine_LD - second * rotation.sine_LD
    turned_second = second * rotation.cosine_LD + first * rotation.sine_LD
    return torch.cat((turned_first, turned_second, rest), dim=-1).to(states_BHLD.dtype)
