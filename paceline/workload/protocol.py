"""What every workload has: model, sets of samples, loss, metrics. Annotations only, so that importing this file does not import torch.

A class may inherit from `Workload`: what has a default here then need not be written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paceline.workload.samples import Batch, SampleSet
from paceline.workload.setting import Setting

if TYPE_CHECKING:
    import numpy as np
    import torch


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


class Workload(Protocol):
    """One recipe with one configuration, inside a worker process."""

    objective: Objective
    metric_names: Sequence[str]
    """what `metrics` returns, in the order of validation.csv's columns"""
    unit: str = "samples"
    """what throughput counts besides samples: items, tokens, audio seconds"""
    splits: Sequence[str]
    """evaluation sets; the first one decides (best, early stop), the others are evaluated once at the end"""
    has_static_shapes: bool = False
    """on a GPU, batches of as many samples are flat dictionaries of tensors of the same shapes, and `loss` neither waits for the device
    nor looks at values on the host: what a CUDA graph asks for"""
    draws_numbers: bool = True
    """the forward pass of training draws random numbers, as dropout does"""

    def build_model(self, setting: Setting) -> torch.nn.Module:
        """The model, on the CPU, initialised from torch's global generator (the engine has seeded it)."""
        ...

    def train_set(self) -> SampleSet: ...

    def evaluation_set(self, split: str) -> SampleSet: ...

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, weight) of a batch, both scalars on the device; the engine divides by the global weight.

        `model` may be wrapped for data parallelism: call it, do not reach into it. Not asked of a workload that `Contrasts`.
        """
        # A body that type checkers do not take for abstract: who contrasts need not have it, and `check_workload` asks the others for it.
        raise AssertionError("a workload that contrasts was asked for the loss of a batch")

    def units(self, ids: Sequence[int]) -> int:
        """How many units of throughput these training samples hold, counted on the host."""
        return len(ids)

    def predict(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Per-sample outputs of an evaluation batch (first dimension: samples), small enough to gather from all ranks."""
        ...

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Metrics from the outputs of all samples of the split, in the order of their ids; NaN where one is not defined.

        Floats come as float64, everything else as int64. Asked of one rank alone: no collectives.
        """
        ...

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]] | None:
        """The name of a trivial model that every trained one must beat, and its metrics on the first samples of a split; or None."""
        return None

    def observe(self, model: torch.nn.Module) -> Mapping[str, float]:
        """Figures about the model worth a line at each evaluation of the deciding split; empty where there are none.

        Asked of one rank alone: no collectives.
        """
        return {}

    def step_flops(self, num_units: int) -> float | None:
        """Floating-point operations of forward and backward for so many units; None where unknown."""
        return None

    def details(self) -> Mapping[str, Any]:
        """Sizes worth printing: items, users, longest sequence …"""
        return {}
