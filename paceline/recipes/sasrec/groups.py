"""Which rows of a batch are transformed together, and which of their positions are computed.

On a CPU only real positions are, and rows of about one length go together: attention, which needs whole rows, pads them to the longest
of a group, and what a group needs stays in the cache. On a GPU all positions of all rows are computed at once: shapes are then the same
in every step, as CUDA graphs need them, and the host never waits to learn how many there are.

    items [[3, 0, 0], [5, 7, 0]]     one group: rows [1, 0], length 2, places [3, 4, 0], inside [0, 1, 2]
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

ROWS = 32
"""of a group. 128 rows of up to 200 (ml-1m), width 50: in one group a step costs a core 1.2 times as much."""


@dataclass(frozen=True)
class Group:
    """Some rows, cut off behind the longest of them."""

    rows_G: Tensor
    length: int
    places_T: Tensor
    """the real positions, in the flattened (B · L) of the batch"""
    inside_T: Tensor
    """the same in the flattened (G · length) of the group"""

    def cut(self, values: Tensor) -> Tensor:
        """These rows of (B, L), as long as the group, or of (B,)."""
        return values[self.rows_G] if values.dim() == 1 else values[self.rows_G, : self.length]


def find_groups(items_BL: Tensor, *, is_one: bool = False) -> list[Group] | None:
    """The groups of a batch on this device, the longest first, or all rows as one of them; None: all positions at once."""
    if items_BL.device.type != "cpu":
        return None
    lengths_B = (items_BL > 0).sum(1)
    order_B = lengths_B.argsort(descending=True, stable=True)
    num_rows = len(order_B) if is_one else ROWS
    return [_group(items_BL, rows_G, int(lengths_B[rows_G[0]])) for rows_G in order_B.split(num_rows)]  # type: ignore[no-untyped-call]


def _group(items_BL: Tensor, rows_G: Tensor, longest: int) -> Group:
    # A rank without samples has a row of padding: its first place is computed, so that every layer runs there as elsewhere.
    length = max(1, longest)
    inside_T = items_BL[rows_G, :length].flatten().nonzero().squeeze(1)
    if not longest:
        inside_T = inside_T.new_zeros(1)
    places_T = rows_G[inside_T // length] * items_BL.shape[1] + inside_T % length
    return Group(rows_G, length, places_T, inside_T)
