"""The samples that are trained and evaluated on, fetched many at a time, on the device where the histories are: one per user.

    TrainSet.fetch([7, 3], draw) ->
      items      (2, 9)    inputs, oldest first, 0 after the end
      targets    (2, 9)    the item that came next, 0 after the end
      keys       (2,)      all that is drawn for a sample follows from its key (sampled losses)
      negatives  (K,)      drawn for the whole step, the same on every rank (shared negatives, in place of keys)
      elapsed    (2, 9)    seconds since the user's first event (model.time)
      scale      (2,)      seconds per unit of the user's pace (model.time)

Of a set whose histories lie on a GPU it gives `places` (K, 2) alone, still on the host, and `cut` makes the rest of it there: as a part
of the step, so that a recorded one has it in its graph.

Padding stands at the end, where causal attention never looks at it. Rows are as long as the longest of the batch; on a GPU, where all
batches have the same shape, as the longest of all.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from paceline.engine.draws import sample_keys
from paceline.recipes.sasrec.config import SasrecConfig
from paceline.recipes.sasrec.histories import Histories
from paceline.recipes.sasrec.interactions import Ints
from paceline.recipes.sasrec.keys import draw_firsts
from paceline.recipes.sasrec.split import Split
from paceline.recipes.sasrec.step_negatives import StepNegatives
from paceline.recipes.sasrec.windows import Windows
from paceline.workload import Draw

Tensors = dict[str, Tensor]


class _Samples:
    """Samples cut out of users' histories."""

    _longest: int

    @property
    def longest(self) -> int:
        """Positions of the longest sample of all."""
        return self._longest

    def __init__(self, histories: Histories, placement: str) -> None:
        self._histories = histories
        self._placement = placement

    def on_device(self, device: torch.device) -> Self | None:
        """The same samples with the histories there; None: they stay on the host, where loader processes may fetch them."""
        if self._placement == "host":
            return None
        placed = copy.copy(self)
        placed._histories = self._histories.to(device)
        return placed

    def _row_length(self, lengths: Ints) -> int:
        return self._longest if self._histories.device.type == "cuda" else int(lengths.max(initial=1))

    def _send(self, *numbers: Ints) -> tuple[Tensor, ...]:
        """In one transfer to where the histories are."""
        return torch.from_numpy(np.stack(numbers)).to(self._histories.device, non_blocking=True).unbind()


class TrainSet(_Samples):
    """For each trained user a window of the training events: each of its targets is predicted from what came before it in the window."""

    def __init__(
        self, histories: Histories, windows: Windows, negatives: StepNegatives | None, config: SasrecConfig
    ) -> None:
        super().__init__(histories, config.data.placement)
        self._windows = windows
        self._negatives = negatives
        self._needs_keys = config.loss.kind != "ce" and negatives is None
        self._longest = int(windows.lengths.max(initial=1))

    def __len__(self) -> int:
        return len(self._windows)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        chosen, windows = np.asarray(ids, np.int64), self._windows
        keys = (sample_keys(draw, chosen).numpy(),) if self._needs_keys else ()
        places = np.stack((draw_firsts(windows, draw, chosen), windows.lengths[chosen], windows.users[chosen], *keys))
        batch = {"places": torch.from_numpy(places)}
        if self._negatives is not None:
            batch["negatives"] = self._negatives.draw(draw)
        return batch if self._histories.device.type == "cuda" else self.cut(batch)

    def cut(self, batch: Tensors) -> Tensors:
        """The whole batch, cut out of the histories that lie where its places are."""
        places_KB = batch.pop("places")
        histories = self._histories.to(places_KB.device)
        firsts_B, lengths_B, users_B, *keys_B = places_KB.unbind()
        row_length = self._longest if places_KB.is_cuda else int(lengths_B.max())
        batch |= histories.cut(firsts_B, lengths_B, users_B, row_length)
        batch["targets"] = histories.cut_items(firsts_B + 1, lengths_B, row_length)
        if self._needs_keys:
            (batch["keys"],) = keys_B
        return batch


class EvaluationSet(_Samples):
    """For each user with held-out events: everything before the answer (its last `max_length` events) and the answer.

    `seen` (B, S) adds what the user already had, in the whole history (evaluate.mask_seen); `candidates` (B, C) what the answer is
    ranked among (evaluate.candidates=sampled). Both are 0 after the end.
    """

    def __init__(
        self, split: Split, name: str, histories: Histories, candidates: Ints | None, config: SasrecConfig
    ) -> None:
        super().__init__(histories, config.data.placement)
        self._users = split.held_out
        self._answers = split.answers(name)
        self._begins = split.interactions.offsets[split.held_out]
        self._max_length = config.data.max_length
        self._mask_seen = config.evaluate.mask_seen
        self._candidates = None if candidates is None else torch.from_numpy(candidates)
        self._longest = min(self._max_length, int((self._answers - self._begins).max(initial=1)))

    def __len__(self) -> int:
        return len(self._answers)

    def on_device(self, device: torch.device) -> Self | None:
        placed = super().on_device(device)
        if placed is not None and self._candidates is not None:
            placed._candidates = self._candidates.to(device)
        return placed

    def fetch(self, ids: Sequence[int], draw: Draw) -> Tensors:
        chosen = np.asarray(ids, np.int64)
        answers, begins = self._answers[chosen], self._begins[chosen]
        lengths = np.minimum(answers - begins, self._max_length)
        places = self._send(answers - lengths, lengths, self._users[chosen], answers, begins, answers - begins)
        firsts_B, lengths_B, users_B, answers_B, begins_B, histories_B = places
        histories = self._histories
        batch = histories.cut(firsts_B, lengths_B, users_B, self._row_length(lengths))
        batch |= {"lengths": lengths_B, "answers": histories.items_E[answers_B]}
        if self._mask_seen:
            batch["seen"] = histories.cut_items(begins_B, histories_B, int((answers - begins).max(initial=1)))
        if self._candidates is not None:
            (chosen_B,) = self._send(chosen)
            batch["candidates"] = self._candidates[chosen_B]
        return batch
