"""Negatives that all positions of a step share: drawn from the step's key and samples, which every rank knows alike.

uniform: any item. popularity: items as often as they occur in training. in_batch: a sample of the step, then one of its targets.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.engine.draws import mix, uniform
from paceline.recipes.sasrec.interactions import Floats, Ints
from paceline.recipes.sasrec.keys import draw_firsts, step_key
from paceline.recipes.sasrec.negatives import draw_by
from paceline.recipes.sasrec.windows import Windows
from paceline.workload import Draw


class StepNegatives(Protocol):
    """Where the negatives of a step come from."""

    def draw(self, draw: Draw) -> Tensor:
        """(K,) items, on the host."""
        ...


class FromCatalogue:
    """Items by their frequency, whatever the step's samples are."""

    def __init__(self, count: int, frequencies: Floats) -> None:
        self._count = count
        self._cumulative_N = torch.from_numpy(np.cumsum(frequencies))

    def draw(self, draw: Draw) -> Tensor:
        return draw_by(step_key(draw), self._count, self._cumulative_N)[0]


class FromBatch:
    """Targets of the step's own samples: popular items come often, at no cost, and the batch is known without asking other ranks."""

    def __init__(self, count: int, windows: Windows, items: Ints) -> None:
        self._count = count
        self._windows = windows
        self._items = items

    def draw(self, draw: Draw) -> Tensor:
        batch, windows = np.asarray(draw.batch, np.int64), self._windows
        keys = mix(step_key(draw) ^ torch.arange(1, 2 * self._count + 1))
        which, place = uniform(keys).numpy().reshape(2, -1)
        samples = batch[(which * len(batch)).astype(np.int64)]
        targets = draw_firsts(windows, draw, samples) + 1 + (place * windows.lengths[samples]).astype(np.int64)
        return torch.from_numpy(self._items[targets])
