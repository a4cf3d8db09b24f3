"""Which stretch of each user's training events an epoch shows: at most `max_length` targets, the latest ones or any.

train 4 1 4 2 3, max_length 2     last: 4 → 2, 2 → 3     random: that, or 1 → 4, 4 → 2, or 4 → 1, 1 → 4, each as likely
"""

from __future__ import annotations

import numpy as np

from paceline.recipes.sasrec.interactions import Floats, Ints
from paceline.recipes.sasrec.split import Split


class Windows:
    """The stretches of all trained users; window w belongs to user `users[w]`."""

    def __init__(self, split: Split, max_length: int, *, is_random: bool) -> None:
        num_targets = split.train_lengths[split.trained] - 1
        self.users = split.trained
        self.lengths: Ints = np.minimum(num_targets, max_length)
        """targets of each window"""
        self._begins = split.interactions.offsets[split.trained]
        self._slack = num_targets - self.lengths
        self.is_random = is_random

    def __len__(self) -> int:
        return len(self.lengths)

    def firsts(self, windows: Ints, draws: Floats | None) -> Ints:
        """Where the first input of each window lies among all events; `draws`, uniform over [0, 1), decide for random ones."""
        slack = self._slack[windows]
        shifts = slack if draws is None else (draws * (slack + 1)).astype(np.int64)
        return self._begins[windows] + shifts

    def target_frequencies(self, items: Ints, num_items: int) -> Floats:
        """The chance of each item, at its id - 1, to be the target at any place of any window, all windows and places alike."""
        num_targets = self.lengths + self._slack
        windows = np.repeat(np.arange(len(self)), num_targets)
        place = np.arange(len(windows)) - np.repeat(np.cumsum(num_targets) - num_targets, num_targets)
        slack, length = self._slack[windows], self.lengths[windows]
        if self.is_random:
            # How many of the slack + 1 shifts show this target.
            shown = np.minimum(place, slack) - np.maximum(0, place - length + 1) + 1
            weights = shown / ((slack + 1) * length)
        else:
            weights = (place >= slack) / length
        targets = items[self._begins[windows] + place + 1]
        return np.bincount(targets - 1, weights, minlength=num_items) / len(self)
