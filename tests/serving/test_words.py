from __future__ import annotations

from paceline.serving.words import read_words


def test_words_whatever_their_case_and_accents() -> None:
    vocabulary, words = read_words(["", "Été indien!", "The E\u0301TE\u0301"])
    assert words.tolist() == [[0, 0], [1, 2], [3, 1]]
    assert vocabulary.find(("été",)).tolist() == [1]
    assert vocabulary.find(("ÉTÉ the", "unknown")).tolist() == [1, 3]
    assert vocabulary.find(()).tolist() == []


def test_of_a_long_title_the_first_words() -> None:
    _, words = read_words(["a a b c d"], most=2)
    assert words.tolist() == [[1, 2]]
    assert read_words([])[1].shape == (0, 0)
