"""Generated interactions with something to learn: chains of items, popularity, taste, repeats, and gaps of time that matter.

Each user lives in sessions. A short gap goes on in the session: usually with one of the few successors of the last item (another set
when the last item opened the session, which only the gaps of time show), sometimes with a repeat, sometimes with anything popular. A
long gap opens a new session with an item of the user's taste. So a model that looks at the last item beats popularity, one that looks
further back does better, and one that sees time better still.

    generate_interactions(users=2000, items=1000, events_per_user=50, seed=0)      about 100,000 events in 0.1 s
"""

from __future__ import annotations

import numpy as np

from paceline.recipes.sasrec.interactions import Flags, Floats, Interactions, Ints, Names

_SHORTEST = 3
_ZIPF = 0.8
_SUCCESSORS = (0.6, 0.25, 0.15)
"""chances of an item's successors"""
_OPENS, _FOLLOWS, _REPEATS = 0.15, 0.70, 0.08
"""shares of events that open a session, follow the chain, repeat; the rest is drawn by popularity"""
_MEMORY = 10
"""a repeat goes back at most so many events"""
_TASTES = 10
_START_S, _SHORT_GAP_S, _LONG_GAP_S = 1_600_000_000.0, 90.0, 3 * 86_400.0


def generate_interactions(users: int, items: int, events_per_user: int, seed: int) -> Interactions:
    """The same interactions for the same arguments; names are the numbers from 1 on.

    Only `random()` is drawn, the part of numpy's generator least likely to change between versions.
    """
    random = np.random.default_rng([seed, users, items, events_per_user])
    world = _World(items, random)
    lengths = _draw_lengths(users, events_per_user, random)
    taste = (random.random(users) * _TASTES).astype(np.int64)
    longest = int(lengths.max())
    history = np.zeros((users, longest), np.int64)
    times = np.zeros((users, longest))
    opened = np.ones(users, np.bool_)
    for position in range(longest):
        alive = np.flatnonzero(lengths > position)
        # Drawn for all users, ended or not: what one draws does not depend on the lengths of others.
        kind, which, wait = random.random((3, users))[:, alive]
        opens = (kind < _OPENS) | (position == 0)
        follows = ~opens & (kind < _OPENS + _FOLLOWS)
        repeats = ~opens & ~follows & (kind < _OPENS + _FOLLOWS + _REPEATS)
        back = 1 + (which[repeats] * min(_MEMORY, position)).astype(np.int64)
        chosen = world.popular(which)
        chosen[opens] = world.liked(taste[alive[opens]], which[opens])
        chosen[repeats] = history[alive[repeats], position - back]
        chosen[follows] = world.successor(history[alive[follows], position - 1], opened[alive[follows]], which[follows])
        gaps = -np.log1p(-wait) * np.where(opens, _LONG_GAP_S, _SHORT_GAP_S)
        history[alive, position] = chosen
        times[alive, position] = gaps + (times[alive, position - 1] if position else _START_S)
        opened[alive] = opens
    is_event = np.arange(longest) < lengths[:, None]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    # The catalogue is all items asked for, also those that nobody happened to meet.
    return Interactions(offsets, history[is_event] + 1, np.floor(times[is_event]), _names(users), _names(items))


class _World:
    """What all users share: how popular items are, which follow which, which belong to a taste. Items are 0 … items - 1."""

    def __init__(self, items: int, random: np.random.Generator) -> None:
        by_rank = np.argsort(random.random(items))
        weights = np.empty(items)
        weights[by_rank] = (1.0 + np.arange(items)) ** -_ZIPF
        self._popularity = _cumulative(weights)
        # Square roots, so that chains also lead to the less popular.
        half = _cumulative(np.sqrt(weights))
        self._successors = np.searchsorted(half, random.random((2, items, len(_SUCCESSORS))), side="right")
        belongs = (random.random(items) * _TASTES).astype(np.int64)
        self._tastes = np.stack([_cumulative(weights * (0.02 + (belongs == taste))) for taste in range(_TASTES)])
        self._chances = _cumulative(np.array(_SUCCESSORS))

    def popular(self, draw: Floats) -> Ints:
        return np.searchsorted(self._popularity, draw, side="right").astype(np.int64)

    def successor(self, last: Ints, opened: Flags, draw: Floats) -> Ints:
        branch = np.searchsorted(self._chances, draw, side="right")
        return self._successors[opened.astype(np.int64), last, branch].astype(np.int64)

    def liked(self, taste: Ints, draw: Floats) -> Ints:
        chosen = np.zeros(len(taste), np.int64)
        for number, cumulative in enumerate(self._tastes):
            mine = taste == number
            chosen[mine] = np.searchsorted(cumulative, draw[mine], side="right")
        return chosen


def _draw_lengths(users: int, mean: int, random: np.random.Generator) -> Ints:
    """Uneven lengths: the shortest plus the sum of two exponentials (a gamma of shape 2), rounded down."""
    spread = (mean - _SHORTEST + 0.5) / 2
    extra: Floats = -np.log1p(-random.random((2, users))).sum(axis=0) * spread
    return _SHORTEST + extra.astype(np.int64)


def _cumulative(weights: Floats) -> Floats:
    """Upper bounds of each outcome's share of [0, 1); the last is 1 exactly, so that every draw finds one."""
    bounds: Floats = np.cumsum(weights) / weights.sum()
    bounds[-1] = 1.0
    return bounds


def _names(count: int) -> Names:
    return np.arange(1, count + 1).astype(np.bytes_)
