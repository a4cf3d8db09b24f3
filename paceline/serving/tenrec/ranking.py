"""The ranker behind the interface that serving knows: requests in, probabilities out, several requests in one go.

    ranker = TenrecRanker(model, categories)
    ranker.rank([Ranked(query, items), …])        -> [(items, 5), …]: the actions, then how well it fits

Requests of different lengths share a batch: shorter ones are filled up with item 0, which changes nothing for the others, because
candidates do not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.recipes.tenrec.columns import ACTIONS
from paceline.recipes.tenrec.contexts import Tensors, to_tensor
from paceline.recipes.tenrec.ranker import Ranker
from paceline.recipes.tenrec.table import NONE
from paceline.serving.acceleration import Precision, Program, Proof, accelerate
from paceline.serving.scorers import Floats, Ranked
from paceline.serving.tenrec.contexts import build_contexts

OUTPUTS = (*ACTIONS, "fit")
"""The last is that of telling what the user chose from what was only sampled."""


class TenrecRanker:
    """A model, or a program made of one, that gives logits for a batch."""

    def __init__(self, model: Ranker, categories: NDArray[np.uint16]) -> None:
        self._model: Program = model.eval()
        self._categories = categories
        self._program: Program | None = None
        self._size = 0

    def rank(self, requests: Sequence[Ranked]) -> list[Floats]:
        if self._program is not None:
            return [self._rank_alone(self._program, request) for request in requests]
        with torch.no_grad():
            chances = self._model(self.build_batch(requests)).sigmoid().numpy()
        return [rows[: len(request.items)] for rows, request in zip(chances, requests, strict=True)]

    def accelerate(self, requests: Sequence[Ranked], size: int, precision: Precision, seconds: float = 3.0) -> Proof:
        """Uses a compiled program from now on, if it proves itself on these requests; it takes `size` candidates at a time."""
        self._size = size
        batches = [self.build_batch([request], size) for request in self._cut(requests)]
        self._program, proof = accelerate(self._model, batches, precision, seconds)
        return proof

    def _rank_alone(self, program: Program, request: Ranked) -> Floats:
        """A program has one shape: one request, in pieces of `size` candidates. On a CPU one request keeps a core busy by itself."""
        parts = [program(self.build_batch([piece], self._size))[0].float().sigmoid() for piece in self._cut([request])]
        return torch.cat(parts)[: len(request.items)].numpy()

    def _cut(self, requests: Sequence[Ranked]) -> list[Ranked]:
        return [
            Ranked(request.query, request.items[first : first + self._size])
            for request in requests
            for first in range(0, len(request.items), self._size)
        ]

    def build_batch(self, requests: Sequence[Ranked], size: int = 0) -> Tensors:
        """Of the size of the longest, or of `size`."""
        longest = max(size, *(len(request.items) for request in requests))
        items = np.full((len(requests), longest), NONE, np.int64)
        for row, request in zip(items, requests, strict=True):
            row[: len(request.items)] = request.items
        contexts = build_contexts([request.query for request in requests], self._categories)
        return contexts | {
            "candidates": torch.from_numpy(items),
            "categories": to_tensor(self._categories.take(items)),
        }
