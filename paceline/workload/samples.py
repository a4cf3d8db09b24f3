"""What a recipe trains and evaluates on: samples that are fetched by their index, and what their draws may depend on. Imports no torch.

batch = samples.fetch([3, 17], Draw(seed=0, epoch=2))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch

Batch = Any
"""A dictionary of tensors (and plain values): what the engine moves to the device and hands back to the workload."""


@dataclass(frozen=True)
class Draw:
    """What randomness may depend on: seed, epoch and sample, or all samples of the step; never the rank, nor its part of them."""

    seed: int
    epoch: int
    batch: Sequence[int] = ()
    """the samples of the step's whole batch, the same on every rank: for what a step draws once; empty in an evaluation"""


class SampleSet(Protocol):
    """Samples that can be fetched by their index, many at a time."""

    def __len__(self) -> int: ...

    def fetch(self, ids: Sequence[int], draw: Draw) -> Batch:
        """The collated batch of these samples. Runs in loader processes too; must not touch a global random generator."""
        ...

    def on_device(self, device: torch.device) -> SampleSet | None:
        """The same samples, kept on the device and fetched there; None: they are fetched on the host, by loader processes if asked."""
        return None


@runtime_checkable
class Weighed(Protocol):
    """What a sample set has besides, where fetching is work: files to read, sound to decode, text to cut."""

    is_heavy: bool
    """whether `fetch` is worth processes of its own (`data.num_workers=auto`); light without this: slices of arrays in memory"""


@runtime_checkable
class Measured(Protocol):
    """What a sample set has besides, where samples are of many lengths, and those of one micro-step had better be alike."""

    def lengths(self, ids: Sequence[int], draw: Draw) -> np.ndarray:
        """How long each of these samples will be in this epoch: a number each, the same on every rank and in every start; reads no file.

        The engine sorts the samples of a step by it where the loss is that of the whole step (`Contrasts`), and nowhere else.
        """
        ...
