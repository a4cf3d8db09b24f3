"""The best so many, in the order in which they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.serving.candidates import Candidates
from paceline.serving.ordering import descending
from paceline.serving.query import Query


@dataclass(frozen=True)
class BestScores:
    """By score; of equal ones, whoever the sources brought first."""

    timeout_s: float | None = None
    name: ClassVar[str] = "best scores"

    def select(self, query: Query, candidates: Candidates) -> NDArray[np.int64]:
        return descending(candidates.score)[: query.top]
