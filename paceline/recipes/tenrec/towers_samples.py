"""The towers' samples: a clicked row each, and for sampled negatives what its step draws.

    ClickSamples.fetch([7, 3], draw) ->
      history, history_categories, genders, ages      the context, see contexts.py
      items, categories, log_q    (2 + K,)            the clicked ones, then K drawn for the whole step, the same on every rank

The logarithm of an item's chance to be there (log_q) is that of its share of the clicks in training, or of how it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.engine.draws import mix, sample_keys, uniform_rows
from paceline.recipes.tenrec.config import Loss
from paceline.recipes.tenrec.contexts import Tensors, look_up_categories, look_up_contexts
from paceline.recipes.tenrec.samples import Shares
from paceline.recipes.tenrec.side import Side
from paceline.recipes.tenrec.table import Ints
from paceline.workload import Draw, SampleSet


class ClickSamples(SampleSet):
    """One for each clicked row of the training side."""

    is_heavy = True

    def __init__(self, side: Side, clicks: Ints, loss: Loss) -> None:
        self._side = side
        self._num_drawn = loss.num_sampled if loss.negatives == "sampled" else 0
        # What is never clicked is never a clicked item of the batch, but it may be drawn: as if it were clicked once.
        weights = np.maximum(clicks[1:], 1) ** (loss.popularity_power if self._num_drawn else 1.0)
        shares = weights / weights.sum()
        self._bounds = np.cumsum(shares)
        self._log_q = np.concatenate(([0.0], np.log(shares))).astype(np.float32)

    def __len__(self) -> int:
        return len(self._side.positives)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        rows, table = self._side.positives[np.asarray(ids, np.int64)], self._side.table
        items = table.item[rows].astype(np.int64)
        if self._num_drawn:
            items = np.concatenate((items, self._draw(draw)))
        return look_up_contexts(table, rows) | {
            "items": torch.from_numpy(items),
            "categories": look_up_categories(table, items),
            "log_q": torch.from_numpy(self._log_q[items]),
        }

    def _draw(self, draw: Draw) -> Ints:
        """From the key of the step's first sample, which no other step of the epoch has: the same in all parts of the step."""
        key = mix(mix(sample_keys(draw, np.asarray(draw.batch[:1], np.int64))))
        (numbers,) = uniform_rows(key, self._num_drawn)
        places = np.searchsorted(self._bounds, numbers * self._bounds[-1], side="right")
        drawn: Ints = 1 + np.minimum(places, len(self._bounds) - 1)
        return drawn


class EvaluationClicks(SampleSet):
    """One for each clicked row of a held-out side, with its share of all impressions there."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._shares = Shares(side.rows, len(side.positives))

    def __len__(self) -> int:
        return len(self.side.positives)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        rows, table = self.side.positives[np.asarray(ids, np.int64)], self.side.table
        answers = torch.from_numpy(table.item[rows].astype(np.int64))
        return look_up_contexts(table, rows) | {"answers": answers} | self._shares.fetch(self.side, ids)
