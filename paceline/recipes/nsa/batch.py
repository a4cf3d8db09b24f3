"""A batch of packed documents as the model sees it; on its way through the engine it is a flat dictionary of tensors.

    TokenBatch.of({"input_ids": …, "labels": …, "positions": …})

      input_ids       5   9   2   7   7   1   0   0
      labels          9   2  -1   7   1  -1  -1  -1      (-1 here stands for NO_LABEL)
      positions       0   1   2   0   1   2   0   1

A row holds whole documents and pieces of documents, one after another: each begins where a position is 0, and two tokens may attend to
each other only inside one. Padding, at the end of a row, is one more document, so that nothing has to be treated apart: it has no labels,
and nothing attends to it. Labels stand
where they are predicted: `labels[t]` is the token after `input_ids[t]` in the same document, which for a document that goes on in another
sample is not in this row at all. All rows are `data.length` long, whatever is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

NO_LABEL = -100
"""where nothing is predicted: what `cross_entropy` passes over by default"""


@dataclass(frozen=True)
class TokenBatch:
    """B rows of T tokens."""

    input_ids: Tensor
    """(B, T) int64"""
    labels: Tensor
    """(B, T) int64; NO_LABEL after the last token of a document, in padding, and wherever a task asks for no prediction"""
    positions: Tensor
    """(B, T) int32, from 0 at the first token of each document, or of its piece in this row"""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> TokenBatch:
        """From what a sample set fetched, on whatever device it is by now."""
        return cls(tensors["input_ids"], tensors["labels"], tensors["positions"])

    def tensors(self) -> dict[str, Tensor]:
        """What a sample set gives to the engine, which knows how to move a dictionary."""
        return {
            "input_ids": self.input_ids,
            "labels": self.labels,
            "positions": self.positions,
        }

    @property
    def is_labelled(self) -> Tensor:
        """(B, T) bool: the positions that a loss or an accuracy counts."""
        return self.labels != NO_LABEL

    @property
    def num_labels(self) -> Tensor:
        """The weight of the batch, a float32 scalar on its device."""
        return self.is_labelled.sum(dtype=torch.float32)
