"""Interactions: who had which item, in which order, as flat arrays; what readers and the generator return.

offsets [0, 3, 5]   items [4, 1, 4, 2, 3]       user 0 had 4, 1, 4; user 1 had 2, 3
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Names = npt.NDArray[np.bytes_]

PADDING = 0
"""The item id that is none; real ones are 1 … num_items."""


@dataclass(frozen=True)
class Interactions:
    """The events of all users, one user after the other, each in order of time."""

    offsets: Ints
    """user u's events are offsets[u] … offsets[u + 1] (exclusive)"""
    items: Ints
    times: Floats | None
    """seconds, not decreasing within a user; None where the source has no time and file order counts"""
    user_names: Names
    """what the source calls user u (UTF-8)"""
    item_names: Names
    """what the source calls item i, at i - 1"""

    @property
    def num_users(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_items(self) -> int:
        return len(self.item_names)

    @property
    def num_events(self) -> int:
        return len(self.items)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)


def group_events(users: Ints, items: Ints, times: Floats | None, user_names: Names, item_names: Names) -> Interactions:
    """Sorts events by user, then by time; events of equal time (or without one) stay in the order given.

    `users` are indices into `user_names`, each of which has an event; `items` are 1 … len(item_names).
    """
    order = np.arange(len(users)) if times is None else np.argsort(times, kind="stable")
    order = order[np.argsort(users[order], kind="stable")]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(users, minlength=len(user_names))))).astype(np.int64)
    return Interactions(offsets, items[order], None if times is None else times[order], user_names, item_names)


def drop_short_users(interactions: Interactions, min_events: int) -> Interactions:
    """Without the users that have fewer than `min_events`, and without the items that only they had."""
    keep_user = interactions.lengths >= min_events
    if keep_user.all():
        return interactions
    lengths = interactions.lengths[keep_user]
    keep_event = np.repeat(keep_user, interactions.lengths)
    present, items = np.unique(interactions.items[keep_event], return_inverse=True)
    return Interactions(
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        items.astype(np.int64) + 1,
        None if interactions.times is None else interactions.times[keep_event],
        interactions.user_names[keep_user],
        interactions.item_names[present - 1],
    )
