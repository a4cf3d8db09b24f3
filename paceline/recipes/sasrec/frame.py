"""The frame of rows that are transformed together: where their real positions lie, and what their attention layers share."""

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
