"""A heat map before it is drawn: one number for each pair of values of two axes.

HeatMap("bucket_mb and num_workers", "samples/s", "num_workers", ["0", "2"], "bucket_mb", ["25", "50"], cells)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What is known of one pair: a number, or a word that says why there is none."""

    value: float | None
    word: str = ""
    outline: str = ""
    """`winner` or `baseline`, where it is one"""


@dataclass(frozen=True)
class HeatMap:
    """Columns and rows in the order they are shown; a pair without a cell was not part of it."""

    title: str
    unit: str
    x_name: str
    x_values: Sequence[str]
    y_name: str
    y_values: Sequence[str]
    cells: Mapping[tuple[int, int], Cell]
    """(column, row) -> its cell"""

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number; both 0 where there is none."""
        values = [cell.value for cell in self.cells.values() if cell.value is not None]
        return min(values, default=0.0), max(values, default=0.0)
