"""Words by number: titles are read once, and a request compares numbers.

    vocabulary, words = read_words(["", "Été indien", "The été"])     # words: [[0, 0], [1, 2], [3, 1]]
    vocabulary.find(("ÉTÉ",))                                         # [1]

A word is a run of letters and digits, whatever its case and however its accents are written. A muted phrase mutes each of its words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Vocabulary:
    """The number of each word, from 1 on."""

    numbers: Mapping[str, int] = field(default_factory=dict)

    def find(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """The numbers of the words in these texts; those that no title has are left out."""
        found = {self.numbers[word] for text in texts for word in split_words(text) if word in self.numbers}
        return np.array(sorted(found), np.int64)


def split_words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def read_words(titles: Sequence[str], most: int = 32) -> tuple[Vocabulary, NDArray[np.int32]]:
    """The vocabulary of all titles, and one row of numbers for each, padded with 0; of a longer title the first `most` different words."""
    numbers: dict[str, int] = {}
    rows = []
    for title in titles:
        unique = list(dict.fromkeys(split_words(title)))[:most]
        rows.append([numbers.setdefault(word, len(numbers) + 1) for word in unique])
    words = np.zeros((len(rows), max(map(len, rows), default=0)), np.int32)
    for row, found in zip(words, rows, strict=True):
        row[: len(found)] = found
    return Vocabulary(numbers), words
