"""A small generated corpus to align: every word of its vocabulary is a chord of its own, every sentence a row of them, with noise.

    corpus = Corpus(sentences=1600, words=24, noise=0.05, seed=0)
    corpus.transcripts[7]        "garden window seven river"
    corpus.speak(7)              float32 at 16 kHz, the same in every process

A word sounds as long as it has letters, and a pause of one letter follows it: that is how crops.py shares out an utterance's time. No two
sentences have the same words in whatever order, so that each speech has one right text.
"""

from __future__ import annotations

from random import Random

import numpy as np

from paceline.recipes.csa.crops import Audio
from paceline.recipes.csa.data_config import MOST_WORDS, RATE

# fmt: off
_WORDS = [
    "apple", "garden", "window", "seven", "river", "quiet", "blue", "thunder", "jump", "fox", "velvet", "karma",
    "hazel", "zigzag", "pony", "cloud", "mix", "oyster", "wheel", "tulip", "brick", "sand", "figure", "domino",
    "yellow", "kettle", "magnet", "lumber", "crisp", "north", "vapor", "echo", "husky", "jungle", "prism", "quartz",
    "ivory", "summit", "banjo", "wax",
]
# fmt: on
_LETTER_S = 0.045
_FADE_S = 0.01
_LOWEST, _HIGHEST = 180.0, 3400.0
_FEWEST, _MOST = 3, 8


class Corpus:
    """Sentences, and the voice that speaks them."""

    def __init__(self, sentences: int, words: int, noise: float, seed: int) -> None:
        assert words <= len(_WORDS) == MOST_WORDS
        self.transcripts = write_sentences(sentences, _WORDS[:words], seed)
        self._sounds = {word: _sound(word, number, words) for number, word in enumerate(_WORDS[:words])}
        self._noise, self._seed = noise, seed
        self.lengths = np.array([sum(len(self._sounds[word]) for word in text.split()) for text in self.transcripts])
        """samples of each"""

    def speak(self, number: int) -> Audio:
        random = np.random.default_rng([self._seed, number])
        # Voices are not all as loud, and no word as loud each time.
        spoken = [self._sounds[word] * random.uniform(0.5, 1.5) for word in self.transcripts[number].split()]
        audio = np.concatenate(spoken).astype(np.float32)
        audio += np.float32(self._noise) * random.standard_normal(len(audio), np.float32)
        return audio * np.float32(random.uniform(0.1, 0.5))


def write_sentences(count: int, words: list[str], seed: int) -> list[str]:
    """The same for the same numbers on every machine: only `random()` is drawn, whose values Python promises to keep."""
    random = Random(f"paceline tones {seed}")
    found: dict[tuple[str, ...], str] = {}
    while len(found) < count:
        length = _FEWEST + int(random.random() * (_MOST - _FEWEST + 1))
        chosen = [words[int(random.random() * len(words))] for _ in range(length)]
        found.setdefault(tuple(sorted(chosen)), " ".join(chosen))
    return list(found.values())


def _sound(word: str, number: int, count: int) -> Audio:
    """A chord of two, out of steps of equal ratio: an even one, which no other word has, and an odd one."""
    steps = np.geomspace(_LOWEST, _HIGHEST, 2 * count)
    pair = steps[2 * number], steps[2 * ((7 * number + count // 2) % count) + 1]
    time = np.arange(int(len(word) * _LETTER_S * RATE)) / RATE
    tone = sum(np.sin(2 * np.pi * pitch * time) for pitch in pair) / 2
    edge = int(_FADE_S * RATE)
    fade = np.minimum(1, np.minimum(np.arange(len(time)), np.arange(len(time))[::-1]) / edge)
    pause = np.zeros(int(_LETTER_S * RATE))
    return np.concatenate([tone * fade, pause]).astype(np.float32)
