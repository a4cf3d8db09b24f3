"""Utterances that can be heard by their number, in whole or in part, from wherever they come; and which are held out.

    sides = load_utterances(config.data)
    sides.train.transcripts[3], sides.train.samples[3]
    sides.train.hear(3, lambda total: Crop(0, 16_000, total))       (float32 audio, its crop)

What is held out has other words than what is trained on: the sides are divided by the transcript, or are splits of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import DataError
from paceline.recipes.csa.corpus import Corpus
from paceline.recipes.csa.crops import Audio, Choose, Crop, Ints
from paceline.recipes.csa.data_config import Data
from paceline.recipes.csa.manifest import Entry
from paceline.recipes.csa.recordings import Recordings, list_sources
from paceline.recipes.csa.source import find_manifest, find_sources
from paceline.recipes.held_out import is_held_out


class Utterances(Protocol):
    transcripts: Sequence[str]
    samples: Ints
    """of each, before any trimming"""

    def hear(self, number: int, choose: Choose) -> tuple[Audio, Crop]:
        """What was chosen of it; DataError where it is not what was listed."""
        ...

    def first(self, count: int) -> Utterances:
        """The first so many of them."""
        ...


@dataclass(frozen=True)
class Sides:
    """What is trained on, and what is evaluated."""

    train: Utterances
    validation: Utterances
    note: str = ""
    """what there is to say about them"""


class Tones:
    """Some sentences of the generated corpus."""

    def __init__(self, corpus: Corpus, numbers: Sequence[int]) -> None:
        self._corpus, self._numbers = corpus, list(numbers)
        self.transcripts: Sequence[str] = [corpus.transcripts[number] for number in self._numbers]
        self.samples: Ints = corpus.lengths[self._numbers]

    def hear(self, number: int, choose: Choose) -> tuple[Audio, Crop]:
        audio = self._corpus.speak(self._numbers[number])
        crop = choose(len(audio))
        return audio[crop.start : crop.start + crop.length], crop

    def first(self, count: int) -> Tones:
        return Tones(self._corpus, self._numbers[:count])


def load_utterances(data: Data) -> Sides:
    """DataError where a side has nothing."""
    if data.source == "generated":
        corpus = Corpus(data.sentences, data.words, data.noise, data.seed)
        trained, held_out = _divide(corpus.transcripts, data.validation_share)
        sides, where = Sides(Tones(corpus, trained), Tones(corpus, held_out)), f"data.sentences={data.sentences}"
    else:
        entries, note = _list_entries(data)
        where = f"data.manifest={data.manifest}" if data.source == "manifest" else f"data.path={data.path}"
        chosen, evaluated = _choose(entries, data, where)
        trim_db = data.top_db if data.trim == "runtime" else None
        sides = Sides(Recordings(chosen, trim_db), Recordings(evaluated, trim_db), note)
    for name, utterances in (("train on", sides.train), ("evaluate", sides.validation)):
        if not len(utterances.transcripts):
            key = "data.validation_share" if data.validation_split is None else "data.validation_split"
            do = f"give more of them, or another {key}"
            raise DataError(f"there are no utterances to {name}", where, do)
    return sides


def _list_entries(data: Data) -> tuple[list[Entry], str]:
    if data.source == "manifest":
        return find_manifest(data).entries, ""
    inputs = find_sources(data)
    wanted = inputs.sources
    if data.splits is not None:
        names = {*data.splits, data.validation_split}
        # Those that are not asked for need not be looked at, but for a split whose name is wrong all are told.
        wanted = [source for source in wanted if source.split in names] or wanted
    note = f"{len(inputs.faults):,} files or transcripts are left out: {inputs.faults[0]}" if inputs.faults else ""
    return list_sources(wanted), note


def _choose(entries: Sequence[Entry], data: Data, where: str) -> tuple[list[Entry], list[Entry]]:
    """Those trained on, and those held out."""
    there = sorted({entry.split for entry in entries})
    asked = [*(data.splits or []), *([data.validation_split] if data.validation_split else [])]
    missing = [name for name in asked if name not in there]
    if missing:
        what = f"there are no utterances of {', '.join(missing)} (there are: {', '.join(there)})"
        raise DataError(what, where, "name splits that are there in data.splits and data.validation_split")
    splits = data.splits or [name for name in there if name != data.validation_split]
    chosen = [entry for entry in entries if entry.split in splits]
    if data.validation_split is not None:
        return chosen, [entry for entry in entries if entry.split == data.validation_split]
    trained, held_out = _divide([entry.transcript for entry in chosen], data.validation_share)
    return [chosen[number] for number in trained], [chosen[number] for number in held_out]


def _divide(transcripts: Sequence[str], share: float) -> tuple[list[int], list[int]]:
    """Numbers of those trained on, and of those held out."""
    sides: tuple[list[int], list[int]] = [], []
    for number, text in enumerate(transcripts):
        sides[is_held_out(text, share)].append(number)
    return sides
