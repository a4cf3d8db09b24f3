"""What the engine asks of a recipe, and nothing more; annotations only, so that importing this file does not import torch.

A recipe is registered as a `Recipe` (no torch: its name, its configuration schema, where its workload lives, what identifies its data)
and builds a `Workload` in the worker process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from paceline.config.sections import RunConfig

if TYPE_CHECKING:
    import numpy as np
    import torch

Batch = Any
"""A dictionary of tensors (and plain values): what the engine moves to the device and hands back to the workload."""


@dataclass(frozen=True)
class Draw:
    """What randomness per sample may depend on: with the sample's id, and nothing else (not the rank, not the batch)."""

    seed: int
    epoch: int


class SampleSet(Protocol):
    """Samples that can be fetched by their index, many at a time."""

    def __len__(self) -> int: ...

    def fetch(self, ids: Sequence[int], draw: Draw) -> Batch:
        """The collated batch of these samples. Runs in loader processes too; must not touch a global random generator."""
        ...


@dataclass(frozen=True)
class Objective:
    """The metric that decides which model is best."""

    metric: str
    direction: str
    """max or min"""

    def better(self, value: float, best: float | None, min_delta: float = 0.0) -> bool:
        if value != value:  # not a number never wins
            return False
        if best is None:
            return True
        return value > best + min_delta if self.direction == "max" else value < best - min_delta


@dataclass(frozen=True)
class Sizes:
    """What `explain` and the run's plan say about a workload."""

    num_parameters: int
    num_train: int
    num_evaluate: Mapping[str, int]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What the engine tells a workload about where it runs, before anything is built."""

    device: torch.device
    attention: str
    """the effective kernel: eager or sdpa"""


class Workload(Protocol):
    """One recipe with one configuration, inside a worker process."""

    objective: Objective
    metric_names: Sequence[str]
    """what `metrics` returns, in the order of validation.csv's columns"""
    unit: str
    """what throughput counts besides samples: items, tokens, audio seconds"""
    splits: Sequence[str]
    """evaluation sets; the first one decides (best, early stop), the others are evaluated once at the end"""

    def build_model(self, setting: Setting) -> torch.nn.Module:
        """The model, on the CPU, initialised from torch's global generator (the engine has seeded it)."""
        ...

    def train_set(self) -> SampleSet: ...

    def evaluation_set(self, split: str) -> SampleSet: ...

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, weight) of a batch, both scalars on the device; the engine divides by the global weight.

        `model` may be wrapped for data parallelism: call it, do not reach into it.
        """
        ...

    def units(self, batch: Batch) -> int:
        """How many units of throughput this batch holds, counted on the host."""
        ...

    def predict(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Per-sample outputs of an evaluation batch (first dimension: samples), small enough to gather from all ranks."""
        ...

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Metrics from the outputs of all samples of the split, in the order of their ids."""
        ...

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]] | None:
        """The name of a trivial model that every trained one must beat, and its metrics on the first samples of a split; or None."""
        ...

    def step_flops(self, num_units: int) -> float | None:
        """Floating-point operations of forward and backward for so many units; None where unknown."""
        ...

    def details(self) -> Mapping[str, Any]:
        """Sizes worth printing: items, users, longest sequence …"""
        ...


@dataclass(frozen=True)
class Recipe:
    """A recipe as the operator's side sees it; importing it must not import torch."""

    name: str
    schema: type[RunConfig]
    build: Callable[[Any], Workload]
    """from the resolved configuration; imports torch when called"""
    identify_data: Callable[[Any], str]
    """a digest of the data's content (or of what it is generated from); raises DataError if it is not there"""
    check: Callable[[Any], Sequence[Any]] = lambda config: ()
    """further `errors.Problem`s of a configuration that types alone cannot see"""
    find_idle: Callable[[Any, Collection[str]], Iterable[tuple[str, str]]] = lambda config, given: ()
    """(key, reason) of the recipe's own keys that somebody gave and that change nothing"""
