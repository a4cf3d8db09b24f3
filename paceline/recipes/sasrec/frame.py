"""The frame of one forward: where the real positions of a batch lie, and what its attention layers share.

On a CPU only the T real positions of the B · L are computed; attention alone needs whole rows, and pads. On a GPU all of them are: shapes
are then the same in every step, as CUDA graphs need them, and the host never waits to learn how many there are.

    items [[5, 7, 0], [3, 0, 0]]     places [0, 1, 3]     T = 3
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.recipes.sasrec.relations import Relations
from paceline.recipes.sasrec.rotary import Rotation


@dataclass(frozen=True)
class Frame:
    """Rows of one length, and which of their positions there are."""

    rows: int
    length: int
    places_T: Tensor | None = None
    """the positions of the flattened (B · L) that are computed; None: all"""
    rotation: Rotation | None = None
    relations: Relations | None = None

    def pad(self, packed_TD: Tensor) -> Tensor:
        """(B, L, D), zeros where nothing is computed."""
        if self.places_T is not None:
            empty = packed_TD.new_zeros(self.rows * self.length, packed_TD.shape[1])
            packed_TD = empty.index_copy(0, self.places_T, packed_TD)
        return packed_TD.view(self.rows, self.length, -1)

    def pack(self, padded_BLD: Tensor) -> Tensor:
        """(T, D), the inverse of `pad`."""
        flat = padded_BLD.flatten(0, 1)
        return flat if self.places_T is None else flat.index_select(0, self.places_T)


def find_places(items_BL: Tensor) -> Tensor | None:
    """The places to compute on this device; None: all."""
    if items_BL.device.type != "cpu":
        return None
    places_T = items_BL.flatten().nonzero().squeeze(1)
    if len(places_T) == items_BL.numel():
        return None
    # A rank without samples has a row of padding: its first place is computed, so that every layer runs there as elsewhere.
    return places_T if len(places_T) else places_T.new_zeros(1)
