"""What a source says of each user or item again in every row: the first that it says counts, and what differs later is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Said:
    """`values` at each number; 0 where nothing was said yet."""

    def __init__(self, kind: type[np.unsignedinteger[Any]]) -> None:
        self._kept = np.zeros(1 << 10, kind)
        self._count = 0
        self.num_otherwise = 0

    @property
    def values(self) -> npt.NDArray[Any]:
        return self._kept[: self._count]

    def add(self, numbers: npt.NDArray[np.integer], said: npt.NDArray[np.integer], count: int) -> None:
        """`count`: how many numbers there are by now."""
        if count > len(self._kept):
            longer = np.zeros(2 * count, self._kept.dtype)
            longer[: self._count] = self.values
            self._kept = longer
        self._count = count
        news = (said > 0) & (self._kept[numbers] == 0)
        if news.any():
            # Backwards: of several rows that say something new the first is written last.
            self._kept[numbers[news][::-1]] = said[news][::-1]
        self.num_otherwise += int(np.count_nonzero((said > 0) & (self._kept[numbers] != said)))
