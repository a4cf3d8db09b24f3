"""Utterances that can be heard by their number, in whole or in part, from wherever they come.

    sides = load_utterances(config.data)
    sides.train.transcripts[3], sides.train.samples[3]
    sides.train.hear(3, lambda total: Crop(0, 16_000, total))       (float32 audio, its crop)

What is held out has other words than what is trained on: the sides are split by the transcript, or are splits of the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.errors import DataError
from paceline.recipes.csa.corpus import Audio, Corpus
from paceline.recipes.csa.crops import Crop, Ints
from paceline.recipes.csa.data_config import RATE, Data
from paceline.recipes.csa.manifest import Entry
from paceline.recipes.csa.source import find_manifest
from paceline.recipes.nsa.split import is_held_out

Choose = Callable[[int], Crop]
"""from the samples of an utterance to the part of it that is wanted"""


class Utterances(Protocol):
    transcripts: Sequence[str]
    samples: Ints
    """of each, before any trimming"""

    def hear(self, number: int, choose: Choose) -> tuple[Audio, Crop]: ...

    def first(self, count: int) -> Utterances:
        """The first so many of them."""
        ...


@dataclass(frozen=True)
class Sides:
    """What is trained on, and what is evaluated."""

    train: Utterances
    validation: Utterances


class Tones:
    """Some sentences of the generated corpus."""

    def __init__(self, corpus: Corpus, numbers: Sequence[int]) -> None:
        self._corpus, self._numbers = corpus, list(numbers)
        self.transcripts = [corpus.transcripts[number] for number in self._numbers]
        self.samples: Ints = corpus.lengths[self._numbers]

    def hear(self, number: int, choose: Choose) -> tuple[Audio, Crop]:
        audio = self._corpus.speak(self._numbers[number])
        crop = choose(len(audio))
        return audio[crop.start : crop.start + crop.length], crop

    def first(self, count: int) -> Tones:
        return Tones(self._corpus, self._numbers[:count])


class Recordings:
    """Files of a prepared corpus, or of a published one."""

    def __init__(self, entries: Sequence[Entry], trim_db: float | None) -> None:
        self._entries = list(entries)
        self._trim_db = trim_db
        self.transcripts = [entry.transcript for entry in self._entries]
        self.samples: Ints = np.array([entry.samples for entry in self._entries], np.int64)

    def hear(self, number: int, choose: Choose) -> tuple[Audio, Crop]:
        raise NotImplementedError

    def first(self, count: int) -> Recordings:
        return Recordings(self._entries[:count], self._trim_db)


def load_utterances(data: Data) -> Sides:
    """DataError where a side has nothing."""
    if data.source == "generated":
        corpus = Corpus(data.sentences, data.words, data.noise, data.seed)
        held_out, trained = _divide(corpus.transcripts, data.validation_share)
        sides, where = Sides(Tones(corpus, trained), Tones(corpus, held_out)), f"data.sentences={data.sentences}"
    else:
        raise NotImplementedError
    for name, utterances in (("train on", sides.train), ("evaluate", sides.validation)):
        if not len(utterances.transcripts):
            do = "give more of them, or another data.validation_share"
            raise DataError(f"there are no utterances to {name}", where, do)
    return sides


def _divide(transcripts: Sequence[str], share: float) -> tuple[list[int], list[int]]:
    """Numbers of those held out, and of the others."""
    sides: tuple[list[int], list[int]] = [], []
    for number, text in enumerate(transcripts):
        sides[not is_held_out(text, share)].append(number)
    return sides
