"""What a trained model can be used for: each a protocol that its workload has besides. Imports no torch.

workload.recommend(model, user="42", history=None, top=10, keep_seen=False)   -> Recommendation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from paceline.workload.samples import Batch

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Infers(Protocol):
    """What a workload has besides, where `predict` does more than inference: asks another model, looks up what is true."""

    def infer(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Of what `predict` gives that which the model itself computes: what is compiled, compared and timed before it is served."""
        ...


@dataclass(frozen=True)
class Recommended:
    """One item, by the name that the data has for it."""

    item: str
    title: str | None
    score: float | None
    """None: it stands in a history, and was not scored"""


@dataclass(frozen=True)
class Recommendation:
    """What a model would show next, best first, and the history that it looked at, oldest first."""

    user: str | None
    """None: the history was given"""
    history: list[Recommended]
    items: list[Recommended]
    note: str = ""
    """what there is to say about it, such as titles that could not be read"""


@runtime_checkable
class Recommends(Protocol):
    """What a workload has besides, where its model recommends."""

    def recommend(
        self, model: torch.nn.Module, *, user: str | None, history: Sequence[str] | None, top: int, keep_seen: bool
    ) -> Recommendation:
        """For a user of the data, or for whoever has the history given; UsageError for a name that the data does not have."""
        ...


@dataclass(frozen=True)
class Sampled:
    """What a model wrote after a prompt."""

    prompt: str
    text: str
    """the prompt not included"""
    num_prompt: int
    num_tokens: int
    """of the text"""
    bytes_per_token: float
    """what attention read of the caches for each of them"""
    note: str = ""
    """what there is to say about it"""


@runtime_checkable
class Samples(Protocol):
    """What a workload has besides, where its model writes."""

    def sample(
        self, model: torch.nn.Module, prompt: str, *, tokens: int, temperature: float, top: int | None, seed: int
    ) -> Sampled:
        """At most so many tokens after the prompt; temperature 0: always the likeliest; UsageError where the data is no text."""
        ...
