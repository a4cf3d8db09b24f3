"""The ranker's samples: lists of candidates to train on, and to evaluate on beside the impressions as they were recorded.

    ListSamples.fetch([7, 3], draw) ->
      history, history_categories, genders, ages      the context, see contexts.py
      candidates, categories   (2, C)                 see lists.py
      places, actions          (2,)                   where the positive one is, and the bits of what came of it
      weights                  (2, C)

An evaluation sample has, besides, `answers` and `users` (2,), the item and user of its row, and its share of all impressions of the side:
`row_…` (2, R, …), each with the context it was shown in, and `row_actions` (2, R), -1 where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from paceline.engine.draws import sample_keys
from paceline.recipes.tenrec.contexts import Tensors, look_up_categories, look_up_contexts, to_tensor
from paceline.recipes.tenrec.data_config import Data
from paceline.recipes.tenrec.lists import draw_lists
from paceline.recipes.tenrec.side import Side
from paceline.workload import Draw, SampleSet

NO_ROW = -1


class ListSamples(SampleSet):
    """One list for each positive row of a side."""

    is_heavy = True

    def __init__(self, side: Side, data: Data) -> None:
        self.side = side
        self._data = data

    def __len__(self) -> int:
        return len(self.side.positives)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        chosen = np.asarray(ids, np.int64)
        rows, table, data = self.side.positives[chosen], self.side.table, self._data
        lists = draw_lists(self.side, rows, sample_keys(draw, chosen), data.negatives, data.num_recorded)
        return look_up_contexts(table, rows) | {
            "candidates": torch.from_numpy(lists.items),
            "categories": look_up_categories(table, lists.items),
            "places": torch.from_numpy(lists.places),
            "actions": to_tensor(table.actions[rows]),
            "weights": torch.from_numpy(lists.weights),
        }


class EvaluationSamples(SampleSet):
    """The same lists for every model, run and seed, each with as many impressions as make all of them together."""

    def __init__(self, side: Side, data: Data) -> None:
        self._lists = ListSamples(side, data)
        self._draw = Draw(data.seed, epoch=0)
        self._shares = Shares(side.rows, len(self._lists))
        self.side = side

    def __len__(self) -> int:
        return len(self._lists)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        rows = self.side.positives[np.asarray(ids, np.int64)]
        of_row = {"answers": to_tensor(self.side.table.item[rows]), "users": to_tensor(self.side.table.user[rows])}
        return self._lists.fetch(ids, self._draw) | of_row | self._shares.fetch(self.side, ids)


class Shares:
    """All impressions of a side, shared out among its samples in order: contiguous, and even to within one."""

    def __init__(self, rows: npt.NDArray[np.uint32], num_samples: int) -> None:
        self._rows = rows
        self._num_samples = max(1, num_samples)
        self.most = -(-len(rows) // self._num_samples)

    def fetch(self, side: Side, ids: Sequence[int]) -> Tensors:
        chosen, count = np.asarray(ids, np.int64), len(self._rows)
        firsts, ends = chosen * count // self._num_samples, (chosen + 1) * count // self._num_samples
        places = firsts[:, None] + np.arange(self.most)
        is_there = places < ends[:, None]
        rows = self._rows[np.minimum(places, count - 1)]
        table, shape = side.table, rows.shape
        contexts = look_up_contexts(table, rows.reshape(-1))
        shown = {f"row_{name}": values.view(*shape, *values.shape[1:]) for name, values in contexts.items()}
        items = table.item[rows]
        return shown | {
            "row_candidates": to_tensor(items),
            "row_categories": look_up_categories(table, items),
            "row_actions": torch.from_numpy(np.where(is_there, table.actions[rows].astype(np.int64), NO_ROW)),
        }


def take_rows(batch: Tensors) -> Tensors:
    """The impressions of a batch as lists of one candidate: B × R samples, without the names' prefix."""
    rows = {name.removeprefix("row_"): values for name, values in batch.items() if name.startswith("row_")}
    flat = {name: values.flatten(0, 1) for name, values in rows.items()}
    return flat | {name: flat[name][:, None] for name in ("candidates", "categories")}
