"""Every filter against a slow, plain one, on random requests; and what it does where its column is absent."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.serving.candidates import Candidates
from paceline.serving.filters import Age, Blocked, Duplicates, MutedWords, OwnItems, Seen
from paceline.serving.query import Query
from paceline.serving.words import Vocabulary, read_words
from tests.serving import plain

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_filter_is_what_the_plain_one_is(seed: int) -> None:
    query, candidates, titles = plain.draw(seed)
    items = candidates.item.tolist()
    vocabulary, words = read_words([titles[item] for item in items])
    with_words = candidates.having(words=words)
    pairs = {
        "duplicates": (Duplicates().keep(query, candidates), plain.duplicates(query, candidates)),
        "age": (Age(5).keep(query, candidates), plain.age(query, candidates, 5)),
        "seen": (Seen().keep(query, candidates), plain.seen(query, candidates)),
        "blocked": (Blocked().keep(query, candidates), plain.blocked(query, candidates)),
        "muted": (MutedWords(vocabulary).keep(query, with_words), plain.muted_words(query, candidates, titles)),
        "own": (OwnItems().keep(query, candidates), plain.own_items(query, candidates)),
    }
    for name, (mask, expected) in pairs.items():
        assert mask.dtype == np.bool_, name
        assert mask.tolist() == expected, name


@pytest.mark.parametrize("seed", range(10))
def test_without_its_column_a_filter_does_nothing(seed: int) -> None:
    query, candidates, _ = plain.draw(seed, absent=("category", "author", "age_s"))
    assert Age(0).keep(query, candidates).all()
    assert MutedWords(Vocabulary({"red": 1})).keep(query, candidates).all()
    assert Blocked().keep(query, candidates).tolist() == plain.blocked(query, candidates)
    assert OwnItems().keep(query, candidates).tolist() == plain.own_items(query, candidates)


def test_the_random_requests_are_not_idle() -> None:
    """In enough of them each filter removes something, and leaves something."""
    removed = dict.fromkeys(("duplicates", "age", "seen", "blocked", "muted", "own"), 0)
    for seed in SEEDS:
        query, candidates, titles = plain.draw(seed)
        found = {
            "duplicates": plain.duplicates(query, candidates),
            "age": plain.age(query, candidates, 5),
            "seen": plain.seen(query, candidates),
            "blocked": plain.blocked(query, candidates),
            "muted": plain.muted_words(query, candidates, titles),
            "own": plain.own_items(query, candidates),
        }
        for name, keep in found.items():
            removed[name] += any(keep) and not all(keep)
    assert min(removed.values()) >= 5, removed


def test_an_unknown_age_stays() -> None:
    candidates = Candidates.build([1, 2, 3], age_s=[np.nan, 4.0, 6.0])
    assert Age(5).keep(Query(top=1), candidates).tolist() == [True, True, False]


def test_those_that_guard_somebody_are_strict() -> None:
    strict = {
        each.name
        for each in (Duplicates(), Age(1), Seen(), Blocked(), MutedWords(Vocabulary()), OwnItems())
        if each.is_strict
    }
    assert strict == {"blocked", "muted words", "own items"}
