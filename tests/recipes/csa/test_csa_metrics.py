"""Recall and median rank, by hand."""

from __future__ import annotations

import numpy as np

from paceline.recipes.csa.metrics import METRICS, chance, measure, rank_all

EYE = np.eye(12)
KEYS = np.arange(12)


def test_a_perfect_model() -> None:
    found = measure(EYE, EYE, KEYS)
    assert tuple(found) == METRICS
    assert {value for name, value in found.items()} == {1.0}


def test_a_model_that_finds_all_alike_finds_nothing() -> None:
    found = measure(EYE[:, :1] * 0 + 1, EYE[:, :1] * 0 + 1, KEYS)
    assert found["recall_1"] == found["s2t_recall_10"] == 0
    assert found["t2s_median_rank"] == 12


def test_ranks_by_hand() -> None:
    asked = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    answers = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    assert rank_all(asked, answers, np.arange(3)).tolist() == [1, 3, 2]
    assert rank_all(answers, asked, np.arange(3)).tolist() == [1, 2, 2]
    found = measure(asked, answers, np.arange(3))
    assert (found["s2t_recall_1"], found["t2s_recall_1"]) == (1 / 3, 1 / 3)
    assert (found["s2t_median_rank"], found["t2s_median_rank"]) == (2, 2)


def test_who_has_the_same_words_is_right_as_well() -> None:
    texts = EYE.copy()
    texts[1] = texts[0]
    assert rank_all(EYE, texts, KEYS)[0] == 2
    keys = KEYS.copy()
    keys[1] = keys[0]
    assert rank_all(EYE, texts, keys)[0] == 1


def test_blocks_change_nothing(monkeypatch) -> None:
    random = np.random.default_rng(0)
    speech, text = random.standard_normal((2, 12, 4))
    whole = measure(speech, text, KEYS)
    monkeypatch.setattr("paceline.recipes.csa.metrics._BLOCK", 5)
    assert measure(speech, text, KEYS) == whole


def test_chance() -> None:
    found = chance(20)
    assert tuple(found) == METRICS
    assert (found["recall_1"], found["s2t_recall_5"], found["t2s_median_rank"]) == (0.05, 0.25, 10.5)
    assert chance(3)["s2t_recall_10"] == 1
