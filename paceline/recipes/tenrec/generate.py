"""Generated impressions with something to learn, of any size: planted tastes, qualities, popularity, rare actions.

Each item has a topic, of which two make a category, a quality and a popularity; popular is not good. Each user has a first and a second
topic, which gender and age make likely or not. Who clicks follows from whether the topic is the user's, from the item's quality and from
gender and age; follow, like and share come after a click only, and are rare. What a user clicked becomes history. So the history and the
attributes tell a user's topics, co-occurrence tells an item's, counts tell its quality, and popularity tells little.

    made = generate(users=2000, items=1000, rows=200_000, seed=0)      about 0.2 s
    made.probability(users, items)                                     (n, 4): the chances of ACTIONS, all of the truth there is
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from paceline.recipes.tenrec.columns import ACTIONS, HISTORY
from paceline.recipes.tenrec.source import identify_generated
from paceline.recipes.tenrec.table import Floats, Items, Table, UInt8s, UInt16s, UInt32s, Users, group_rows
from paceline.recipes.tenrec.world import People, World

_BLOCK_ROWS = 65_536
"""about so many rows are drawn at a time: what memory holds beside the outcome"""
_SHOWN_POPULAR, _SHOWN_TOPIC = 0.25, 0.55
"""shares of impressions drawn by popularity, and among the user's topics; the rest is drawn evenly"""
_FIRST_TOPIC = 0.6
"""of those among the user's topics"""
_LIKED_TOPIC = 0.9
"""share of the first history that is of the user's topics"""
_WITHOUT_HISTORY, _SHORT_HISTORY = 0.03, 0.12
"""shares of users that begin with none, and with less than all of it"""
_MEAN_WATCHING = 3.0


@dataclass(frozen=True, eq=False)
class Block:
    """The rows of some users, one user after the other; numbers as in `Table`."""

    user: UInt32s
    item: UInt32s
    actions: UInt8s
    watching: UInt16s
    history: UInt32s


class Generator:
    """Draws the rows block by block: memory does not grow with their number.

    Only `random()` is drawn, the part of numpy's generator least likely to change between versions.
    """

    def __init__(self, users: int, items: int, rows: int, seed: int) -> None:
        self.num_rows, self.num_items = rows, items
        self._seed = seed
        self.world = World(items, np.random.default_rng([seed, 0]))
        self.people = People(users, self.world, np.random.default_rng([seed, 1]))
        self._offsets = _share_rows(rows, users, np.random.default_rng([seed, 2]))
        self._users_per_block = max(1, users * _BLOCK_ROWS // rows)
        self.identity = identify_generated(users, items, rows, seed)

    @property
    def num_users(self) -> int:
        return len(self.people.gender)

    def users(self) -> Users:
        """Named 1 … num_users."""
        people = self.people
        return Users(people.gender + np.uint8(1), people.age + np.uint8(1), np.arange(1, self.num_users + 1))

    def categories(self) -> UInt16s:
        """Of each item, at its number."""
        category = (self.world.category + 1).astype(np.uint16)
        category[0] = 0
        return category

    def probability(self, users: npt.NDArray[np.integer], items: npt.NDArray[np.integer]) -> Floats:
        """(n, 4): the chance that a user to whom the item is shown clicks, follows, likes, shares."""
        chances = self.people.chances(self.world, users, items)
        chances[:, 1:] *= chances[:, :1]
        return chances

    def blocks(self) -> Iterator[Block]:
        for number, first in enumerate(range(0, self.num_users, self._users_per_block)):
            end = min(first + self._users_per_block, self.num_users)
            if self._offsets[end] > self._offsets[first]:
                yield self._draw(np.random.default_rng([self._seed, 3, number]), first, end)

    def _draw(self, random: np.random.Generator, first: int, end: int) -> Block:
        offsets = self._offsets[first : end + 1] - self._offsets[first]
        local = np.repeat(np.arange(end - first), np.diff(offsets))
        user = local + first
        topics = self.people.topics[user]
        kind, which, place, watched = random.random((4, len(user)))
        item = self.world.any_item(place)
        is_popular = kind < _SHOWN_POPULAR
        item[is_popular] = self.world.popular_item(place[is_popular])
        of_topic = ~is_popular & (kind < _SHOWN_POPULAR + _SHOWN_TOPIC)
        topic = np.where(which < _FIRST_TOPIC, topics[:, 0], topics[:, 1])
        item[of_topic] = self.world.popular_item(place[of_topic], topic[of_topic])

        happens = random.random((len(user), len(ACTIONS))) < self.people.chances(self.world, user, item)
        happens[:, 1:] &= happens[:, :1]
        actions = (happens << np.arange(len(ACTIONS))).sum(1).astype(np.uint8)
        watching = np.where(happens[:, 0], 1 - np.log1p(-watched) * _MEAN_WATCHING, 0).astype(np.uint16)
        begun = self._begin_histories(random, self.people.topics[first:end])
        history = _roll_histories(begun, local, offsets, item, happens[:, 0])
        return Block(user.astype(np.uint32), item.astype(np.uint32), actions, watching, history)

    def _begin_histories(self, random: np.random.Generator, topics: UInt8s) -> list[npt.NDArray[np.int64]]:
        """(users, 10) items that each user had before the first row, oldest first, and how many of them count."""
        users = len(topics)
        share, length = random.random((2, users))
        lengths = np.where(share < _SHORT_HISTORY, 1 + (length * (HISTORY - 1)).astype(np.int64), HISTORY)
        lengths[share > 1 - _WITHOUT_HISTORY] = 0
        kind, which, place = random.random((3, users, HISTORY))
        topic = np.where(which < _FIRST_TOPIC, topics[:, :1], topics[:, 1:])
        liked = self.world.liked_item(place, topic)
        return [np.where(kind < _LIKED_TOPIC, liked, self.world.popular_item(place)), lengths]


@dataclass(frozen=True, eq=False)
class Generated:
    """A table, and the truth about it."""

    table: Table
    generator: Generator

    def probability(self, users: npt.NDArray[np.integer], items: npt.NDArray[np.integer]) -> Floats:
        """(n, 4): the chance that a user to whom the item is shown clicks, follows, likes, shares."""
        return self.generator.probability(users, items)


def generate(users: int, items: int, rows: int, seed: int) -> Generated:
    """All of it in memory; the same for the same arguments. Users are named 1 … users, items by their numbers."""
    generator = Generator(users, items, rows, seed)
    blocks = list(generator.blocks())
    columns = {field.name: np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(Block)}
    offsets, order = group_rows(columns["user"], users)
    exposures = np.bincount(columns["item"], minlength=items + 1)
    clicks = np.bincount(columns["item"], columns["actions"] & 1, minlength=items + 1).astype(np.int64)
    stock = Items(generator.categories(), np.arange(items + 1), exposures, clicks)
    table = Table(
        **columns,
        users=generator.users(),
        items=stock,
        offsets=offsets,
        order=order,
        identity=generator.identity,
    )
    return Generated(table, generator)


def _share_rows(rows: int, users: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Where each user's rows begin: uneven numbers of them that make exactly `rows`."""
    weights = 0.2 - np.log1p(-random.random((2, users))).sum(axis=0)
    ends = np.floor(np.cumsum(weights) / weights.sum() * rows + 0.5).astype(np.int64)
    ends[-1] = rows
    return np.concatenate(([0], ends))


def _roll_histories(
    begun: list[npt.NDArray[np.int64]],
    local: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    item: npt.NDArray[np.int64],
    clicked: npt.NDArray[np.bool_],
) -> UInt32s:
    """(rows, 10): before each row the items that its user had or clicked last, the latest first."""
    items, lengths = begun
    before = np.concatenate(([0], np.cumsum(clicked)))
    clicks = np.diff(before[offsets])
    starts = np.concatenate(([0], np.cumsum(lengths + clicks)))[:-1]
    had = np.zeros(int((lengths + clicks).sum()), np.uint32)
    users, places = np.nonzero(np.arange(HISTORY) < lengths[:, None])
    had[starts[users] + places] = items[users, places]
    inside = before[:-1] - before[offsets[:-1]][local]
    ends = starts[local] + lengths[local] + inside
    had[ends[clicked]] = item[clicked]
    index = ends[:, None] - np.arange(1, HISTORY + 1)
    return np.where(index >= starts[local][:, None], had[np.maximum(index, 0)], np.uint32(0))
