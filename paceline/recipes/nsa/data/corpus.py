"""A small generated corpus with something to learn: letters and words, grammar, what is true in its world, what a document said before.

Its world has people, towns, crafts and goods, the same in all documents: who lives where and does what can be learned by heart. Each
document is a letter or a chronicle about a few of them. A number, a day or a thing that it names early comes back later, so that a model
that looks far back does better than one that does not; how common names and words are falls off as in real text.

    write_corpus(documents=2000, seed=0)      about 2.5 MB in under a second
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_ONSETS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
_CODAS = ["", "", "l", "m", "n", "r", "s", "th", "nd", "rk"]
_CRAFTS = [
    "baker",
    "weaver",
    "smith",
    "mason",
    "miller",
    "cooper",
    "glazier",
    "potter",
    "tanner",
    "carter",
    "fisher",
    "joiner",
]
_GOODS = [
    "bread",
    "cloth",
    "iron",
    "stone",
    "flour",
    "barrels",
    "glass",
    "jars",
    "leather",
    "wheels",
    "salt",
    "timber",
    "honey",
    "rope",
    "candles",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MOODS = ["glad", "tired", "worried", "proud", "angry", "calm", "hopeful"]
_WEATHER = [
    "the rain had not stopped",
    "the road was dry",
    "snow lay on the hills",
    "the river stood high",
    "it was hot",
]
_PEOPLE, _TOWNS = 160, 40


def write_corpus(documents: int, seed: int) -> list[str]:
    """The same texts for the same numbers, on every machine: only `random()` is drawn, whose values Python promises to keep."""
    world = _World(Random(f"paceline world {seed}"))
    return [_Document(world, Random(f"paceline document {seed} {number}")).write() for number in range(documents)]


class _World:
    """What all documents share."""

    def __init__(self, random: Random) -> None:
        self.towns = _names(random, _TOWNS, 2)
        self.people = _names(random, _PEOPLE, 2)
        self.homes = {name: _common(random, self.towns) for name in self.people}
        self.crafts = {name: _any(random, _CRAFTS) for name in self.people}
        self.made = {craft: _any(random, _GOODS) for craft in _CRAFTS}
        self.roads = {town: [_common(random, self.towns) for _ in range(3)] for town in self.towns}


class _Document:
    """One text, about a few people and what stays the same in it."""

    def __init__(self, world: _World, random: Random) -> None:
        self._world, self._random = world, random
        self._who = _common(random, world.people)
        self._other = _common(random, world.people)
        self._day = _any(random, _DAYS)
        self._number = 2 + int(random.random() ** 2 * 97)
        self._code = "".join(_any(random, "ABCDEFGHKMNPRSTUVWXYZ") for _ in range(2)) + str(
            int(random.random() * 900) + 100
        )
        self._mood = _any(random, _MOODS)

    def write(self) -> str:
        random = self._random
        # From a few sentences to about sixty: lengths as uneven as those of real documents.
        count = 3 + int(random.random() ** 3 * 58)
        sentences = [self._open(), *(self._go_on() for _ in range(count)), self._close()]
        breaks = [" " if random.random() > 0.15 else "\n\n" for _ in sentences]
        return "".join(part for pair in zip(sentences, breaks, strict=True) for part in pair).strip() + "\n"

    def _open(self) -> str:
        who, home = self._who, self._world.homes[self._who]
        if self._random.random() < 0.4:
            return f"Dear {self._other}, I write to you from {home}, where I am {self._article(self._craft())}. It concerns lot {self._code}."
        return (
            f"On {self._day} {who}, the {self._craft()} of {home}, set out with {self._number} "
            f"{self._goods()}, marked {self._code}."
        )

    def _go_on(self) -> str:
        random, world = self._random, self._world
        who = self._who if random.random() < 0.6 else _common(random, world.people)
        home, craft = world.homes[who], world.crafts[who]
        kind = int(random.random() * 10)
        if kind == 0:
            return f"{who} lives in {home} and is {self._article(craft)}."
        if kind == 1:
            return f"The road from {home} leads to {_common(random, world.roads[home])}, and {_any(random, _WEATHER)}."
        if kind == 2:
            return f"All {self._number} {self._goods()} were counted again, and {self._number} they were."
        if kind == 3:
            return f"{self._other} asked for the mark, and {self._who} said: {self._code}."
        if kind == 4:
            first, second = 1 + int(random.random() * 49), 1 + int(random.random() * 49)
            return f"{first} and {second} make {first + second}, as every {craft} knows."
        if kind == 5:
            return f"The {craft}s of {home} make {world.made[craft]}, and sell it on {_any(random, _DAYS)}."
        if kind == 6:
            return f"{self._who} was {self._mood}, for it was {self._day}."
        if kind == 7:
            return f"In {home} they say that {_any(random, _WEATHER)} when {who} came."
        if kind == 8:
            return f"Then {self._who} met {who}, the {craft}, who had come from {home}."
        return f"Nobody in {world.homes[self._other]} had seen {self._other} since {self._day}."

    def _close(self) -> str:
        return (
            f"So ended the journey of {self._who}, {self._article(self._craft())} of {self._world.homes[self._who]}, "
            f"with lot {self._code}: {self._number} {self._goods()}."
        )

    def _craft(self) -> str:
        return self._world.crafts[self._who]

    def _goods(self) -> str:
        return f"loads of {self._world.made[self._craft()]}"

    @staticmethod
    def _article(word: str) -> str:
        return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _any(random: Random, choices: Sequence[str]) -> str:
    return choices[int(random.random() * len(choices))]


def _common(random: Random, choices: list[str]) -> str:
    """The earlier ones more often: the cube of an even draw."""
    return choices[int(random.random() ** 3 * len(choices))]


def _names(random: Random, count: int, syllables: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        parts = [_any(random, _ONSETS) + _any(random, _VOWELS) + _any(random, _CODAS) for _ in range(syllables)]
        found["".join(parts).capitalize()] = None
    return list(found)
