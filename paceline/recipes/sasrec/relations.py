"""What TiSASRec knows of time and place: for keys and for values a table of interval bins and one of positions, shared by all blocks.

Shapes: H heads, R bins, L positions, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.intervals import bin_intervals, count_bins


@dataclass(frozen=True)
class Relations:
    """The tables, split by heads, and which bin lies between which two events of a batch."""

    bins_BLL: Tensor
    interval_keys_HRD: Tensor
    interval_values_HRD: Tensor
    position_keys_HLD: Tensor | None
    """None, like the values: positions are rotary"""
    position_values_HLD: Tensor | None


class RelationTables(nn.Module):
    """Owns the tables."""

    def __init__(self, max_length: int, config: Model) -> None:
        super().__init__()
        self._span, self._kind, self._heads = config.time_span, config.time_bins, config.heads
        num_bins = count_bins(config.time_span, config.time_bins)
        self.interval_key_embedding = nn.Embedding(num_bins, config.width)
        self.interval_value_embedding = nn.Embedding(num_bins, config.width)
        self.position_key_embedding: nn.Embedding | None = None
        self.position_value_embedding: nn.Embedding | None = None
        if config.positions == "learned":
            self.position_key_embedding = nn.Embedding(max_length, config.width)
            self.position_value_embedding = nn.Embedding(max_length, config.width)

    def forward(self, elapsed_BL: Tensor, scale_B: Tensor) -> Relations:
        length = elapsed_BL.shape[1]
        return Relations(
            bin_intervals(elapsed_BL, scale_B, self._span, self._kind),
            self._by_heads(self.interval_key_embedding.weight),
            self._by_heads(self.interval_value_embedding.weight),
            *(
                None if table is None else self._by_heads(table.weight[:length])
                for table in (self.position_key_embedding, self.position_value_embedding)
            ),
        )

    def _by_heads(self, table_RD: Tensor) -> Tensor:
        return table_RD.view(len(table_RD), self._heads, -1).transpose(0, 1)
