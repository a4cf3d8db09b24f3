"""The candidates of the old protocol: for each held-out user so many items that the user never had, drawn once and for all.

Drawn uniformly, one may come twice, from a seed of their own: all models, all runs and both splits are compared on the same ones.
"""

from __future__ import annotations

import numpy as np

from paceline.recipes.sasrec.interactions import PADDING, Ints
from paceline.recipes.sasrec.split import Split

_SEED = 20_180


def draw_candidates(split: Split, count: int) -> Ints:
    """(held-out users, count) items; PADDING, which counts against the answer, for a user who had every item."""
    interactions = split.interactions
    draws = np.random.default_rng(_SEED).random((len(split.held_out), count))
    candidates = np.full(draws.shape, PADDING, np.int64)
    for row, user in enumerate(split.held_out):
        had = np.unique(interactions.items[interactions.offsets[user] : interactions.offsets[user + 1]])
        num_left = interactions.num_items - len(had)
        if num_left:
            nth = (draws[row] * num_left).astype(np.int64)
            # The nth item not had: as many of `had` come before it as have at most n unknown ones below them.
            candidates[row] = 1 + nth + np.searchsorted(had - 1 - np.arange(len(had)), nth, side="right")
    return candidates
