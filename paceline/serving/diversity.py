"""The next of the same kind counts less: a list is not all of one author, nor all of one category.

    Diversity("category", decay=0.9, floor=0.5).score(query, candidates)      -> {"score": …}

In the order of scores, the k-th of a group (k = 0, 1, 2, …) keeps `floor + (1 - floor) · decay^k` of its score, so the first keeps all of
it, and none less than `floor`. A negative score falls by the same share of its size. Within a group the order stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.errors import UsageError
from paceline.serving.candidates import Candidates, Floats, Ints
from paceline.serving.ordering import descending, positions_within
from paceline.serving.query import Query
from paceline.serving.stages import Columns, SkippedError

_MOST_POSITIONS = 4096
"""from where on the factor is that of the last one; at a decay of 0.995 it is within 1e-8 of the floor there"""


@dataclass(frozen=True)
class Diversity:
    """Over one column; without it, scores stay as they are."""

    column: str = "category"
    decay: float = 0.9
    floor: float = 0.5
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("decay", self.decay), ("floor", self.floor)):
            if not 0 <= value <= 1:
                raise UsageError(f"the {name} of diversity is {value}", self.name, "give a number from 0 to 1")

    @property
    def name(self) -> str:
        return f"{self.column} diversity"

    def score(self, query: Query, candidates: Candidates) -> Columns:
        groups = candidates.get(self.column)
        if groups is None:
            raise SkippedError(f"there is no column {self.column}")
        order = descending(candidates.score)
        positions = positions_within(groups[order])
        factors = np.empty(len(order), np.float32)
        factors[order] = _factors(self.decay, self.floor, positions)
        return {"score": demoted(candidates.score, factors)}


def demoted(scores: Floats, factors: Floats) -> Floats:
    """score · factor where it is positive; where it is negative, as much lower."""
    return scores - (1 - factors) * np.abs(scores)


def _factors(decay: float, floor: float, positions: Ints) -> Floats:
    count = min(int(positions.max(initial=0)) + 1, _MOST_POSITIONS)
    table = (floor + (1 - floor) * decay ** np.arange(count, dtype=np.float64)).astype(np.float32)
    return table.take(np.minimum(positions, count - 1))
