"""What each kind of stage is asked, and what it gives back. A pipeline knows its stages only through these.

Every stage has a name, and a limit of its own: `timeout_s` None means that it runs in the caller's thread, and cannot be late. That is
for work in memory, which takes the time it takes; whatever may wait for somebody else needs a limit.

What becomes of a request when one of them fails, or is late:

    kind                 what is lost
    query hydrator       what it would have added to the query
    source               its candidates
    candidate hydrator   its columns: stages that use them do nothing
    filter               nothing is removed by it; by a strict one everything, for nobody must see what it guards against
    scorer               scores stay what they were before it: without the model, the order of the sources
    selector             the plain order of scores is taken
    side effect          itself
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.serving.candidates import Candidates
from paceline.serving.query import Query

Columns = Mapping[str, NDArray[Any]]


class Stage(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def timeout_s(self) -> float | None: ...


class QueryHydrator(Stage, Protocol):
    def hydrate(self, query: Query) -> Mapping[str, Any]:
        """Fields of the query, by their names."""
        ...


class Source(Stage, Protocol):
    def fetch(self, query: Query) -> Candidates:
        """Candidates, the best first, with scores that compare between sources, such as `Candidates.build` gives by rank."""
        ...


class CandidateHydrator(Stage, Protocol):
    def hydrate(self, query: Query, candidates: Candidates) -> Columns:
        """Columns, one row for each candidate."""
        ...


class Filter(Stage, Protocol):
    @property
    def is_strict(self) -> bool:
        """Whether nothing at all is shown rather than something that this filter could not look at."""
        ...

    def keep(self, query: Query, candidates: Candidates) -> NDArray[np.bool_]:
        """Whether each candidate stays; all of them where the column it looks at is absent."""
        ...


class Scorer(Stage, Protocol):
    def score(self, query: Query, candidates: Candidates) -> Columns:
        """Columns, `score` among them or not; later scorers see what earlier ones gave."""
        ...


class Selector(Stage, Protocol):
    def select(self, query: Query, candidates: Candidates) -> NDArray[np.int64]:
        """Row numbers, in the order in which they are shown."""
        ...


class SideEffect(Stage, Protocol):
    def run(self, query: Query, shown: Candidates) -> None:
        """After the answer; whoever asked does not wait for it."""
        ...


class SkippedError(Exception):
    """Raised by a stage that has nothing to do, such as a scorer of probabilities where there are none: recorded, and no failure."""
