"""What a sweep did not tell apart is said, with what would; a clear one has no doubt."""

from __future__ import annotations

from dataclasses import replace

from paceline.sweep.doubt import find_doubt
from paceline.sweep.racer import Racer
from tests.sweep.trials import SETTINGS, finish, machine


def test_cases_that_were_not_told_apart_are_named_with_what_would_tell_them() -> None:
    rates = {f"case {i}": 1000.0 + 10 * i for i in range(6)}
    settings = replace(SETTINGS, repeats=3)
    racer = finish(Racer(list(rates), "case 0", settings, 0), machine(rates, 0.1, 0))
    doubt = find_doubt(racer.ranking(), settings)
    assert doubt is not None
    assert set(doubt.rivals) == set(rates) - {racer.ranking().leader}
    assert doubt.repeats is not None
    assert doubt.repeats > 3
    assert doubt.sentence.startswith(f"not decided: {racer.ranking().leader} is the front of 6 cases")
    assert f"about {doubt.repeats:,} trials of each" in doubt.sentence


def test_a_winner_leaves_no_doubt() -> None:
    rates = {"base": 1000.0, "best": 1300.0}
    settings = replace(SETTINGS, racing=False, repeats=6)
    racer = finish(Racer(list(rates), "base", settings, 0), machine(rates, 0.005, 0))
    assert racer.verdicts()["best"].verdict == "winner"
    assert find_doubt(racer.ranking(), settings) is None


def test_no_number_is_given_that_was_not_enough_already(monkeypatch) -> None:
    rates = {f"case {i}": 1000.0 + 10 * i for i in range(4)}
    settings = replace(SETTINGS, repeats=3)
    racer = finish(Racer(list(rates), "case 0", settings, 0), machine(rates, 0.1, 0))
    monkeypatch.setattr("paceline.sweep.doubt.repeats_for", lambda *_: 1)
    doubt = find_doubt(racer.ranking(), settings)
    assert doubt is not None
    assert doubt.repeats is None
    assert "trials of each" not in doubt.sentence
