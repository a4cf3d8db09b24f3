"""The leave-one-out split: of each user's events the last is the test answer, the one before it the validation answer.

    events 4 1 4 2 3     train 4 1 4     validation 4 1 4 → 2     test 4 1 4 2 → 3

A user with fewer than 3 events holds nothing out and is trained on only. A training sample needs two events, so a user with exactly 3
is evaluated without having been trained on. Both are counted, none is dropped silently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.recipes.sasrec.interactions import Interactions, Ints

SPLITS = ("validation", "test")

_HELD_OUT = 2


@dataclass(frozen=True)
class Split:
    """Which part of each user's events is for what."""

    interactions: Interactions
    train_lengths: Ints
    """events of each user, from the first, that may be trained on"""
    held_out: Ints
    """users with a validation and a test answer"""
    trained: Ints
    """users with at least one training target"""

    def answers(self, split: str) -> Ints:
        """Where the held-out users' answers lie in `interactions.items`; their input is everything before it."""
        ends = self.interactions.offsets[1:][self.held_out]
        return ends - (_HELD_OUT - SPLITS.index(split))

    def train_counts(self) -> Ints:
        """How often each item occurs in training events, at its id - 1."""
        interactions = self.interactions
        within = np.arange(interactions.num_events) - np.repeat(interactions.offsets[:-1], interactions.lengths)
        is_train = within < np.repeat(self.train_lengths, interactions.lengths)
        return np.bincount(interactions.items[is_train] - 1, minlength=interactions.num_items)


def split_last(interactions: Interactions) -> Split:
    lengths = interactions.lengths
    holds_out = lengths > _HELD_OUT
    train_lengths = lengths - _HELD_OUT * holds_out
    return Split(interactions, train_lengths, np.flatnonzero(holds_out), np.flatnonzero(train_lengths >= 2))
