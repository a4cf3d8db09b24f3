"""A retrieval task: names with values, planted far back in long filler, and asked for at the end. What is close by does not help.

    filler … PLANT name value … filler … PLANT name value … filler (data.needle_distance or more) … ASK name value ASK name value

The values are planted after `data.needle_first`, outside the first block, and end `data.needle_distance` before the first question, outside
the sliding window and the local blocks: only a model that finds the right block among all others can answer. Names and values are tokens
of their own, drawn anew for each sample and epoch, so there is nothing to remember; filler is text of the generated corpus. Labels stand
on the values of the questions alone: loss and accuracy are those of the answers, and guessing gives 1 in 64 for each token.
"""

from __future__ import annotations

import numpy as np

from paceline.recipes.nsa.batch import NO_LABEL
from paceline.recipes.nsa.data.packing import Packed
from paceline.recipes.nsa.data.source import NEEDLE_NAMES, needle_vocabulary
from paceline.recipes.nsa.data.stream import Ints
from paceline.recipes.nsa.data.tokenizer import ByteTokenizer
from paceline.recipes.nsa.data_config import Data, needle_room

VALUES = needle_vocabulary() - NEEDLE_NAMES
NAMES = VALUES - NEEDLE_NAMES
ASK = NAMES - 1
PLANT = ASK - 1


def draw_needle(data: Data, split: str, sample: int, epoch: int, filler: Ints) -> Packed:
    """One sample; that of validation is the same in every epoch."""
    random = np.random.default_rng([data.seed, split == "validation", epoch if split == "train" else 0, sample])
    names = np.argsort(random.random(NEEDLE_NAMES))[: data.needle_pairs] + NAMES
    values = (random.random((data.needle_pairs, data.needle_tokens)) * NEEDLE_NAMES).astype(np.int64) + VALUES
    tokens = _cut_filler(filler, data.length, random.random())
    for place, name, value in zip(_draw_places(data, random), names, values, strict=True):
        tokens[place : place + data.needle_tokens + 2] = [PLANT, name, *value]
    order = np.argsort(random.random(data.needle_pairs))
    asked = np.concatenate([[ASK, names[pair], *values[pair]] for pair in order])
    tokens[data.length - len(asked) :] = asked
    labels = np.full(data.length, NO_LABEL, np.int64)
    is_value = np.tile(np.arange(data.needle_tokens + 2) >= 2, data.needle_pairs)
    answers = np.flatnonzero(is_value) + data.length - len(asked)
    labels[answers - 1] = tokens[answers]
    return Packed(tokens, labels, np.arange(data.length))


def _draw_places(data: Data, random: np.random.Generator) -> Ints:
    """Where each pair begins: anywhere in the room there is, without touching another."""
    width = data.needle_tokens + 2
    free = needle_room(data) - data.needle_pairs * width
    gaps = np.sort((random.random(data.needle_pairs) * (free + 1)).astype(np.int64))
    return data.needle_first + gaps + np.arange(data.needle_pairs) * width


def _cut_filler(filler: Ints, length: int, where: float) -> Ints:
    """So many tokens of it, from anywhere on; from its end it goes on at its beginning."""
    first = int(where * len(filler))
    return np.resize(np.roll(filler, -first), length) if length > len(filler) else _wrap(filler, first, length)


def _wrap(filler: Ints, first: int, length: int) -> Ints:
    return np.concatenate((filler[first : first + length], filler[: max(0, first + length - len(filler))]))


def read_filler(texts: list[str]) -> Ints:
    """Text as the tokens between needles."""
    return np.concatenate([np.array(tokens, np.int64) for tokens in ByteTokenizer().encode(texts)])
