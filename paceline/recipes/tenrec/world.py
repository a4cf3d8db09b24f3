"""The planted world behind generated rows: what items and users are, and the chance of each action of each pair.

The logit of a click is a base, plus what the user's topics, the item's quality (little where the topic is not the user's), and gender and
age towards the item's category give. What is shown most is, a little, not the best: who ranks by clicks ranks mostly by what was shown.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.recipes.tenrec.columns import ACTIONS
from paceline.recipes.tenrec.table import Floats, Ints, UInt8s

TOPICS = 16
CATEGORIES = TOPICS // 2
GENDERS, AGES = 3, 8
_ZIPF = 1.4
_QUALITY = 1.0
"""scale of a logistic distribution: the standard deviation is 1.8 times that"""
_SHOWN_FOR_QUALITY = 0.8
"""by how much quality falls with one standard deviation of the logarithm of popularity"""
_QUALITY_ELSEWHERE = 0.2
"""how much of quality counts where the topic is not the user's"""
_AFFINITY = (1.0, 0.8)
"""for the first and the second topic; none for others"""
_BASES = (-2.9, -4.6, -3.0, -4.6)
_BY_AFFINITY = (2.6, 1.6, 1.0, 0.8)
_BY_QUALITY = (1.0, 0.4, 0.6, 0.6)
"""of ACTIONS: a click, and what follows given a click"""
_BY_ATTRIBUTES = 0.4
_TASTE_OF_GROUP = 1.5
"""how uneven the chances of topics are in a group of one gender and age"""


class World:
    """What all users share; arrays over items have one entry more, for none at 0."""

    def __init__(self, items: int, random: np.random.Generator) -> None:
        self.topic = np.zeros(items + 1, np.int64)
        # In turn, shuffled: no topic is without items where there are enough of them.
        self.topic[1:] = (np.arange(items) % TOPICS)[np.argsort(random.random(items))]
        self.category = self.topic // 2
        self.quality = np.zeros(items + 1)
        ranks = np.argsort(np.argsort(random.random(items)))
        popularity: Floats = (1.0 + ranks.astype(np.float64)) ** -_ZIPF
        shown = _standardized(np.log(popularity))
        self.quality[1:] = _QUALITY * _logistic(random.random(items)) - _SHOWN_FOR_QUALITY * shown
        self._by_topic = 1 + np.argsort(self.topic[1:], kind="stable")
        self._bounds = np.searchsorted(self.topic[self._by_topic], np.arange(TOPICS + 1))
        self._popular = _cumulative(popularity[self._by_topic - 1])
        liked = _sigmoid(_BASES[0] + _BY_AFFINITY[0] + _BY_QUALITY[0] * self.quality[self._by_topic])
        self._liked = _cumulative(popularity[self._by_topic - 1] * liked)
        self._by_gender = _logistic(random.random((GENDERS, CATEGORIES))) * _BY_ATTRIBUTES
        self._by_age = _logistic(random.random((AGES, CATEGORIES))) * _BY_ATTRIBUTES
        tastes = np.exp(_logistic(random.random((GENDERS * AGES, TOPICS))) * _TASTE_OF_GROUP / 1.8)
        self.tastes = np.stack([_cumulative(row)[1:] for row in tastes])
        """(groups, topics): upper bounds of each topic's share"""

    def any_item(self, draw: Floats) -> Ints:
        return 1 + (draw * len(self._by_topic)).astype(np.int64)

    def popular_item(self, draw: Floats, topic: npt.NDArray[np.integer] | None = None) -> Ints:
        """By popularity, of all items or of a topic."""
        return self._find(self._popular, draw, topic)

    def liked_item(self, draw: Floats, topic: npt.NDArray[np.integer]) -> Ints:
        """By popularity and quality: what one who has that topic clicked."""
        return self._find(self._liked, draw, topic)

    def _find(self, bounds: Floats, draw: Floats, topic: npt.NDArray[np.integer] | None) -> Ints:
        if topic is not None:
            low, high = bounds[self._bounds[topic]], bounds[self._bounds[topic + 1]]
            draw = low + draw * (high - low)
        place = np.searchsorted(bounds[1:], draw, side="right")
        return self._by_topic[np.minimum(place, len(self._by_topic) - 1)]

    def lean(self, gender: UInt8s, age: UInt8s, category: Ints) -> Floats:
        """What gender and age add to the logit of a click."""
        return self._by_gender[gender, category] + self._by_age[age, category]


class People:
    """What each user is; gender and age as a file records them."""

    def __init__(self, users: int, world: World, random: np.random.Generator) -> None:
        draws = random.random((4, users))
        # Few are of unknown gender, as in the original.
        self.gender = np.searchsorted((0.04, 0.55), draws[0], side="right").astype(np.uint8)
        self.age = (draws[1] * AGES).astype(np.uint8)
        tastes = world.tastes[self.gender.astype(np.int64) * AGES + self.age]
        topics = [(tastes <= draw[:, None]).sum(1) for draw in draws[2:]]
        topics[1] = np.where(topics[1] == topics[0], (topics[0] + 1) % TOPICS, topics[1])
        self.topics = np.minimum(np.stack(topics, 1), TOPICS - 1).astype(np.uint8)
        """(users, 2): the first and the second"""

    def chances(self, world: World, users: npt.NDArray[np.integer], items: npt.NDArray[np.integer]) -> Floats:
        """(n, 4): of a click, and given a click of the others."""
        matches = self.topics[users] == world.topic[items][:, None]
        affinity = matches @ np.array(_AFFINITY)
        counts = _QUALITY_ELSEWHERE + (1 - _QUALITY_ELSEWHERE) * affinity
        quality = world.quality[items] * counts
        lean = world.lean(self.gender[users], self.age[users], world.category[items])
        logits = np.empty((len(affinity), len(ACTIONS)))
        for action in range(len(ACTIONS)):
            logits[:, action] = _BASES[action] + _BY_AFFINITY[action] * affinity + _BY_QUALITY[action] * quality + lean
        return _sigmoid(logits)


def _logistic(draw: Floats) -> Floats:
    """A logistic variable of an even draw; the ends are cut off, so that all are finite."""
    draw = np.clip(draw, 1e-4, 1 - 1e-4)
    return np.log(draw / (1 - draw))


def _standardized(values: Floats) -> Floats:
    outcome: Floats = (values - values.mean()) / max(float(values.std()), 1e-9)
    return outcome


def _sigmoid(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))


def _cumulative(weights: Floats) -> Floats:
    """0, and the upper bounds of each outcome's share."""
    return np.concatenate(([0.0], np.cumsum(weights) / weights.sum()))
