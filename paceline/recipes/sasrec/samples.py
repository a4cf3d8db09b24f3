"""The samples that are trained and evaluated on, fetched many at a time: one per user.

    fetch([7, 3], draw) ->
      ids        (2,)      which samples these are
      items_BL   (2, 9)    inputs, oldest first, 0 after the end (length of the longest of the batch)
      positions  (13,)     where a prediction is asked for, in the flattened (B · L)
      targets    (13,)     the item that came next, there
      negatives  (13, K)   bce only

Padding stands at the end, where causal attention never looks at it; a prediction is asked for only at real positions, so ragged batches
cost neither wrong gradients nor wasted scores. No samples give one row of padding without targets: weight 0, but a whole forward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.recipes.sasrec.interactions import PADDING, Ints
from paceline.recipes.sasrec.negatives import draw_negatives
from paceline.recipes.sasrec.split import Split
from paceline.workload import Draw

Tensors = dict[str, torch.Tensor]


class TrainSet:
    """For each trained user the last `max_length` training targets, each predicted from what came before it in the window."""

    def __init__(self, split: Split, max_length: int, num_negatives: int) -> None:
        lengths = split.train_lengths[split.trained]
        self._items = split.interactions.items
        self._num_items = split.interactions.num_items
        self._num_negatives = num_negatives
        self.lengths = np.minimum(lengths - 1, max_length)
        self._starts = split.interactions.offsets[split.trained] + lengths - 1 - self.lengths

    def __len__(self) -> int:
        return len(self._starts)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        chosen = np.asarray(ids, np.int64)
        starts, lengths = self._starts[chosen], self.lengths[chosen]
        items, positions = _pad(self._items, starts, lengths)
        samples, within = _spread(lengths)
        targets = self._items[starts[samples] + within + 1]
        batch = _tensors(ids=chosen, items=items, positions=positions, targets=targets)
        if self._num_negatives:
            negatives = draw_negatives(
                draw.seed, draw.epoch, chosen[samples], within, targets, self._num_negatives, self._num_items
            )
            batch |= _tensors(negatives=negatives)
        return batch


class EvaluationSet:
    """For each user with held-out events: everything before the answer (its last `max_length` events) and the answer.

    `mask_seen` adds what the user already had, in the whole history: `seen_rows`, `seen_items`, and `answer_seen` per sample.
    """

    def __init__(self, split: Split, name: str, max_length: int, mask_seen: bool) -> None:
        self._items = split.interactions.items
        self._answers = split.answers(name)
        self._firsts = split.interactions.offsets[split.held_out]
        self._max_length = max_length
        self._mask_seen = mask_seen

    def __len__(self) -> int:
        return len(self._answers)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        chosen = np.asarray(ids, np.int64)
        answers, firsts = self._answers[chosen], self._firsts[chosen]
        lengths = np.minimum(answers - firsts, self._max_length)
        items, _ = _pad(self._items, answers - lengths, lengths)
        positions = np.arange(len(chosen)) * items.shape[1] + lengths - 1
        targets = self._items[answers]
        batch = _tensors(ids=chosen, items=items, positions=positions, targets=targets)
        if self._mask_seen:
            rows, within = _spread(answers - firsts)
            seen = self._items[firsts[rows] + within]
            answer_seen = np.zeros(len(chosen), np.bool_)
            answer_seen[rows[seen == targets[rows]]] = True
            batch |= _tensors(seen_rows=rows, seen_items=seen)
            batch["answer_seen"] = torch.from_numpy(answer_seen)
        return batch


def _spread(lengths: Ints) -> tuple[Ints, Ints]:
    """Row and column of each cell of ragged rows, row by row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return rows, columns


def _pad(items: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """The rows items[start : start + length], padded to the longest, and the flat places of what is real."""
    longest = int(lengths.max(initial=1))
    rows, columns = _spread(lengths)
    padded = np.full((max(1, len(lengths)), longest), PADDING, np.int64)
    padded[rows, columns] = items[starts[rows] + columns]
    return padded, rows * longest + columns


def _tensors(**arrays: Ints) -> Tensors:
    return {name: torch.from_numpy(np.ascontiguousarray(array, np.int64)) for name, array in arrays.items()}
