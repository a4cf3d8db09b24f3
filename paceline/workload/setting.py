"""What is decided before anything is built: where a workload runs, what it chooses there, what it settles for a whole run. Imports no torch.

Setting(torch.device("cuda"), attention="sdpa", precision="bf16", micro_batch=16)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Setting:
    """What the engine tells a workload about where it runs, before anything is built."""

    device: torch.device
    attention: str
    """the effective kernel: eager, sdpa or flex; own: every attention is the recipe's. Which backends SDPA may use is the engine's business"""
    needs_even_calls: bool = False
    """in a training forward, the elements of the model's lists of modules are called equally often on all ranks, whatever their batches:
    the weights of such a block travel when it is called. Evaluations may do as they like"""
    precision: str = "fp32"
    """what matrix products and attention compute in: fp32, bf16 or fp16"""
    micro_batch: int = 1
    """samples of a rank's largest micro-step"""
    settled: Mapping[str, Any] = field(default_factory=dict)
    """what the workload itself settled for all ranks and every start of the run (`Settles`); outside a training what of it holds here"""


@dataclass(frozen=True)
class Choice:
    """Something that a recipe decides for itself."""

    about: str
    """a key, or what it is about"""
    requested: Any
    effective: Any
    reason: str


@runtime_checkable
class Chooses(Protocol):
    """What a workload has besides, where it makes choices of its own that a run's events must tell of."""

    def choices(self, setting: Setting) -> Sequence[Choice]:
        """For the place where it runs, the same on every rank whose GPU is of the same kind; ConfigError where nothing is left to choose."""
        ...


@runtime_checkable
class Settles(Protocol):
    """What a workload has besides, where numbers depend on what is neither in its configuration nor the same at every start: what was
    measured on this machine, what lies in somebody's cache."""

    def settle(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `choices` and `build_model` will find in `setting.settled`, on every rank: plain JSON, kept in the run's checkpoints.

        Asked of rank 0 alone, no collectives, and before random numbers are seeded. `before` is what the run went by so far, empty at its
        first start: it is to be kept to, unless the configuration asks for something else now, or it cannot be had here.
        """
        ...

    def keep(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same for a model that was trained and is only used, such as evaluated: what of a checkpoint's holds here.

        Nothing is measured or found anew for it.
        """
        ...
