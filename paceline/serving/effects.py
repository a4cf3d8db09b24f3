"""What follows from an answer, after it was given: how often each item was shown."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.serving.candidates import Candidates
from paceline.serving.query import Query


class ShownCounts:
    """Counts what is shown, by the numbers of the items."""

    name: ClassVar[str] = "shown counts"

    def __init__(self, num_items: int, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        self._counts = np.zeros(num_items, np.int64)
        self._lock = threading.Lock()

    def run(self, query: Query, shown: Candidates) -> None:
        with self._lock:
            self._counts[shown.item] += 1  # an item stands in a list once

    def counts(self) -> NDArray[np.int64]:
        with self._lock:
            return self._counts.copy()
