"""What a candidate is worth: the model's probability of each action, and how much each action counts.

    ModelScorer(batcher)                                       -> {"actions": (n, 4)}
    WeightedActions({"click": 1.0, "like": 4.0}, ACTIONS)      -> {"score": (n,)}

Without the model's probabilities, because the model failed or was late, `WeightedActions` has nothing to do, and the order is that of the
sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.serving.batcher import Batcher
from paceline.serving.candidates import Candidates
from paceline.serving.query import Query
from paceline.serving.stages import Columns, SkippedError

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Ranked:
    """What a model is asked to look at: one user, and candidates that do not see each other."""

    query: Query
    items: NDArray[np.int64]


class Ranker(Protocol):
    """A model behind an interface that knows no tensors."""

    def rank(self, requests: Sequence[Ranked]) -> Sequence[Floats]:
        """For each request, the probability of each action of each of its items: (items, actions)."""
        ...


@dataclass(frozen=True)
class ModelScorer:
    """Asks the model, together with whatever other requests are there at the time."""

    batcher: Batcher[Ranked, Floats]
    timeout_s: float | None = None
    """the batcher has its own thread, and its answer is waited for up to `wait_s` in the caller's"""
    wait_s: float = 0.2
    name: ClassVar[str] = "model"

    def score(self, query: Query, candidates: Candidates) -> Columns:
        if not len(candidates):
            raise SkippedError("no candidates")
        return {"actions": self.batcher.ask(Ranked(query, candidates.item), self.wait_s)}


@dataclass(frozen=True)
class WeightedActions:
    """The sum of what each action is worth, times its probability."""

    weights: Mapping[str, float]
    actions: Sequence[str]
    """in the order of the model's columns"""
    timeout_s: float | None = None
    name: ClassVar[str] = "weighted actions"

    def __post_init__(self) -> None:
        unknown = sorted(set(self.weights) - set(self.actions))
        if unknown:
            what = f"there is no action {', '.join(unknown)}"
            raise UsageError(what, "weights of actions", f"use {', '.join(self.actions)}")

    def score(self, query: Query, candidates: Candidates) -> Columns:
        probabilities: NDArray[Any] | None = candidates.get("actions")
        if probabilities is None:
            raise SkippedError("there are no probabilities: scores stay those of the sources")
        weights = np.array([self.weights.get(action, 0.0) for action in self.actions], np.float32)
        return {"score": probabilities @ weights}
