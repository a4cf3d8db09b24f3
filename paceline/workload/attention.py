"""The attentions of a model, as their kernels see them: what torch is asked about before anything runs. Imports no torch.

AttentionCall("training", rows=16, heads=8, queries=512, keys=512, width=64, is_causal=True)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class AttentionCall:
    """The largest attention of one phase, or of one branch there, as its kernel sees it; the type of its numbers follows from the precision."""

    phase: str
    """training, with a backward, or evaluation"""
    rows: int
    heads: int
    queries: int
    keys: int
    width: int
    """of a head"""
    is_causal: bool = False
    mask: str = "none"
    """besides: none, boolean, or bias (numbers added to the scores)"""
    dropout: float = 0.0
    kernels: Collection[str] = ("eager", "sdpa", "flex")
    """those that the recipe has for it"""
    why: str = ""
    """why not the others; of the recipe's own, what decides"""
    name: str = ""
    """which of several attentions of the model: one word, the same in every phase"""
    own: str = ""
    """what of the recipe's own computes it: one word, with which the names of its kernels begin; torch: nothing but torch's operators.
    Empty: one of the engine's kernels"""

    @property
    def shape(self) -> str:
        """In words, without the phase."""
        size = f"{self.rows} rows × {self.heads} heads, {self.queries} × {self.keys}, width {self.width}"
        words = [f"{self.name}: {size}" if self.name else size]
        words += ["causal"] if self.is_causal else []
        words += [f"{self.mask} mask"] if self.mask != "none" else []
        words += [f"dropout {self.dropout:g}"] if self.dropout else []
        return ", ".join(words)

    def __str__(self) -> str:
        return f"{self.phase}: {self.shape}"


@runtime_checkable
class Attends(Protocol):
    """What a workload has besides, where its model has attention: what torch is asked about before anything runs."""

    def attention_calls(self, device_type: str, micro_batch: int, block: int) -> Sequence[AttentionCall]:
        """For a full micro-batch of so many samples, and for an evaluation block; empty where there is none."""
        ...
