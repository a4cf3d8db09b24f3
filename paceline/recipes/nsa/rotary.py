"""Rotary positions: queries and keys are turned by an angle that grows with their position, so that products see distances alone.

Coordinate c of a head is turned together with coordinate c + half, each head by itself. Angles are computed in float64: in float32 a
position of 65,536 is off by 4e-3 radians already. Shapes: B rows, T tokens, H heads, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BASE = 10_000.0


class Rotation(NamedTuple):
    """Cosine and sine of the angles of each place, (B, T, half)."""

    cosine: Tensor
    sine: Tensor

    def at(self, index_BN: Tensor) -> Rotation:
        """The rotation of some of these places, by their index in the row."""
        rows_B1 = torch.arange(index_BN.shape[0], device=index_BN.device)[:, None]
        return Rotation(self.cosine[rows_B1, index_BN], self.sine[rows_B1, index_BN])


def build_rotation(positions_BT: Tensor, head_width: int, dtype: torch.dtype) -> Rotation:
    """Computed once per forward, for all layers; half precision gets float32 tables."""
    half = head_width // 2
    frequencies = BASE ** (-torch.arange(half, device=positions_BT.device, dtype=torch.float64) / half)
    angles = positions_BT.double()[..., None] * frequencies
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return Rotation(angles.cos().to(wide), angles.sin().to(wide))


def rotate(states_BTHD: Tensor, rotation: Rotation) -> Tensor:
    """The same queries or keys, turned; computed in the type of the tables, returned in their own.

    Halves are swapped rather than joined: so a compiler writes what it turned, and its gradient, straight to where that is wanted, where a joint
    of halves would lie in memory of its own first.
    """
    cosine, sine = rotation.cosine[:, :, None, None], rotation.sine[:, :, None, None]
    halves_BTH2h = torch.unflatten(states_BTHD.to(cosine.dtype), -1, (2, -1))
    sign_21 = 2 * torch.arange(2, device=sine.device, dtype=sine.dtype)[:, None] - 1
    turned = halves_BTH2h * cosine + halves_BTH2h.flip(-2) * (sine * sign_21)
    return turned.flatten(-2).to(states_BTHD.dtype)
