"""The corpus of tones."""

from __future__ import annotations

import numpy as np

from paceline.recipes.csa.corpus import Corpus
from paceline.recipes.csa.crops import Crop, words_within


def test_the_same_in_every_process_and_another_with_another_seed() -> None:
    one, again, other = (Corpus(30, 12, 0.1, seed) for seed in (3, 3, 4))
    assert one.transcripts == again.transcripts != other.transcripts
    assert np.array_equal(one.speak(5), again.speak(5))
    assert one.speak(5).dtype == np.float32
    assert [len(one.speak(number)) for number in range(30)] == one.lengths.tolist()


def test_no_two_sentences_have_the_same_words() -> None:
    corpus = Corpus(400, 8, 0.1, 0)
    assert len({tuple(sorted(text.split())) for text in corpus.transcripts}) == 400
    assert {len(text.split()) for text in corpus.transcripts} == {3, 4, 5, 6, 7, 8}


def test_every_word_has_a_sound_of_its_own() -> None:
    corpus = Corpus(10, 40, 0, 0)
    spectra = {}
    for word, sound in corpus._sounds.items():
        spectrum = np.abs(np.fft.rfft(sound, 32_768))
        spectra[word] = spectrum / np.linalg.norm(spectrum)
    table = np.stack(list(spectra.values()))
    likeness = table @ table.T - np.eye(40)
    assert likeness.max() < 0.8


def test_a_word_sounds_where_its_letters_say() -> None:
    """What crops.py assumes of all speech holds here to the sample."""
    corpus = Corpus(20, 12, 0, 0)
    for number, text in enumerate(corpus.transcripts):
        ends = np.cumsum([len(corpus._sounds[word]) for word in text.split()])
        first = Crop(0, int(ends[0]), int(ends[-1]))
        assert words_within(text, first) == text.split()[0], number
