"""The geometry of native sparse attention: which blocks there are, and which of them a query may look at.

    compressed blocks   l tokens each, one every d tokens          l = 32, d = 16
    selection blocks    l' tokens each, side by side               l' = 64, of which a query looks at n = 16
    window              the query and the w - 1 tokens before it   w = 512

Everything is counted from the start of a document, wherever in a packed row it lies: a document computes there what it would compute
alone, and nothing is looked at across a border. Compressed blocks that lie wholly in a document take one slot each of a row, in the order
of their last tokens; those that a query may see, wholly in its past or ending with it, are then a contiguous range of slots.

    l = 4, d = 2     row      a a a a a a a b b b b b
                     slots          0   1         2          ends 3, 5, 10
                     the last b (index 11): first 2, seen 3

Shapes: B rows, T tokens, N slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.recipes.nsa.rotary import Rotation, build_rotation


@dataclass(frozen=True)
class Pattern:
    """The sizes; their defaults are the paper's."""

    block: int = 32
    """l: tokens of a compressed block"""
    stride: int = 16
    """d: tokens from one compressed block to the next; divides l and l'"""
    selection_block: int = 64
    """l': tokens of a selection block"""
    selected: int = 16
    """n: selection blocks that a query looks at, those in force included"""
    window: int = 512
    """w: tokens of the sliding window, the query's own included"""
    initial: int = 1
    """the first blocks of a document are always selected"""
    local: int = 2
    """and so are the query's own block and those right before it"""

    @property
    def sizes(self) -> list[int]:
        """All of them: Pattern(*sizes) is the same again."""
        return [self.block, self.stride, self.selection_block, self.selected, self.window, self.initial, self.local]

    def num_compressed(self, length: int) -> int:
        """Compressed blocks that lie wholly in a document of this length."""
        return max(0, (length - self.block) // self.stride + 1)

    def num_slots(self, length: int) -> int:
        """Enough for any documents in a row of this length: a document of L tokens has at most L / d blocks. One at least."""
        return max(1, length // self.stride)

    def num_selection(self, length: int) -> int:
        """Selection blocks of a document of this length, the last one cut short or not."""
        return -(-length // self.selection_block)

    @property
    def reach(self) -> int:
        """Selection blocks that one compressed block may lie in: the one that it begins in, and those after it."""
        return 1 + -(-(self.block - self.stride) // self.selection_block)

    def num_selected(self, length: int) -> int:
        """Tokens of the blocks that the last token of such a document selects: all of them are whole but its own."""
        own, inside = divmod(length - 1, self.selection_block)
        return (min(self.selected, own + 1) - 1) * self.selection_block + inside + 1


@dataclass(frozen=True)
class Frame:
    """What all layers have to know about the documents of a batch."""

    positions_BT: Tensor
    """in the document, from 0"""
    starts_BT: Tensor
    """index in the row at which the token's document begins"""
    ends_BN: Tensor
    """index in the row of each compressed block's last token; T: the slot is empty"""
    first_BT: Tensor
    """the first slot of the token's document"""
    seen_BT: Tensor
    """the slot after the last one that the token may see; first: it sees none"""
    rotation: Rotation
    block_rotation: Rotation
    """of the slots: by the position of a block's first token"""


def build_frame(positions_BT: Tensor, pattern: Pattern, head_width: int, dtype: torch.dtype) -> Frame:
    """From positions that restart at 0 with each document. Nothing here waits for the device."""
    positions_BT = positions_BT.long()
    rows, length = positions_BT.shape
    index_T = torch.arange(length, device=positions_BT.device)
    starts_BT = index_T - positions_BT
    past_BT = positions_BT + 1 - pattern.block
    is_end_BT = (past_BT >= 0) & (past_BT % pattern.stride == 0)
    seen_BT = is_end_BT.long().cumsum(1)
    first_BT = (seen_BT - is_end_BT.long()).gather(1, starts_BT)
    slots_BN = torch.arange(1, pattern.num_slots(length) + 1, device=index_T.device).expand(rows, -1)
    # The first index at which so many blocks have ended is where the last of them ends.
    ends_BN = torch.searchsorted(seen_BT, slots_BN.contiguous())
    rotation = build_rotation(positions_BT, head_width, dtype)
    begins_BN = (ends_BN - (pattern.block - 1)).clamp(0, length - 1)
    return Frame(positions_BT, starts_BT, ends_BN, first_BT, seen_BT, rotation, rotation.at(begins_BN))


def one_document(rows: int, length: int, device: torch.device) -> Tensor:
    """Positions of rows that hold one document each."""
    return torch.arange(length, device=device).expand(rows, -1)
