"""What a trial showed, from plain data."""

from __future__ import annotations

import math

import pytest

from paceline.triage.verdict import Seen, Verdict, find_symptom, judge_trial, shows, symptom_of


def rows(*losses: float, rate: float = 100.0) -> list[dict]:
    return [{"step": 5 * i + 5, "loss": loss, "samples_per_s": rate + i} for i, loss in enumerate(losses)]


def failure(error: str, what: str, **more) -> dict:
    return {"kind": "failure", "error": error, "problems": [{"what": what}]} | more


def incident(kind: str) -> dict:
    return {"kind": "incident", "finding": {"kind": kind, "what": "rank 1 stands still"}}


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (Seen(0, rows=rows(4, 3.9, 3.8, 3.7)), "healthy"),
        (Seen(0, rows=rows(4, 4.1, 4.2, 4.1)), "healthy"),
        (Seen(0, rows=rows(4, 5, 6, 7)), "diverged"),
        (Seen(0, rows=rows(4.0, 4.0, 4.0, 4.0), level=2.0), "diverged"),
        (Seen(0, rows=rows(4, math.nan)), "diverged"),
        (Seen(4, events=[failure("NonFiniteError", "not a number")]), "diverged"),
        (Seen(4, events=[failure("DesyncError", "parameters differ")]), "diverged"),
        (Seen(4, events=[failure("OutOfMemoryError", "CUDA out of memory")]), "out_of_memory"),
        (Seen(4, events=[failure("PacelineError", "Expected to have finished reduction")]), "failed"),
        (Seen(5, events=[incident("stall")]), "stalled"),
        (Seen(5, events=[incident("stall"), failure("RankLostError", "gone", secondary=True)]), "stalled"),
        (Seen(None, timed_out=True), "stalled"),
        (Seen(None, timed_out=True, is_bounded=False, rows=rows(4, 3.9, 3.8, 3.7)), "healthy"),
        (Seen(None, timed_out=True, is_bounded=False, rows=rows(4, 5, 6, 7)), "diverged"),
        (Seen(5, timed_out=True, is_bounded=False, events=[incident("stall")]), "stalled"),
        (Seen(2, tail=["ConfigError: no", "  do: this"]), "refused"),
        (Seen(4, tail=["RuntimeError: no", "more"]), "failed"),
    ],
)
def test_what_became_of_it(seen: Seen, status: str) -> None:
    assert judge_trial(seen).status == status


def test_the_error_is_found_in_what_it_printed() -> None:
    assert judge_trial(Seen(2, tail=["step 1", "ConfigError: no", "  do: this"])).what == "ConfigError: no"


def test_the_pace_is_that_of_the_later_windows() -> None:
    assert judge_trial(Seen(0, rows=rows(4, 4, 4, 4, 4, 4))).samples_per_s == 103.5


def test_a_symptom_shows_or_not() -> None:
    healthy, slow = Verdict("healthy", samples_per_s=100.0), Verdict("healthy", samples_per_s=80.0)
    assert not shows("deadlock", healthy, None, 1.1)
    assert shows("deadlock", Verdict("failed"), None, 1.1)
    assert not shows("deadlock", Verdict("diverged"), None, 1.1)
    assert shows("low_throughput", slow, 80.0, 1.1)
    assert not shows("low_throughput", healthy, 80.0, 1.1)


def test_which_symptom() -> None:
    assert find_symptom(["message", "stall", "not_finite"]) == "deadlock"
    assert find_symptom(["not_finite"]) == "instability"
    assert find_symptom(["data_bound"]) == "low_throughput"
    assert find_symptom(["message"]) is None
    assert symptom_of(Verdict("failed", "RuntimeError: Expected to have finished reduction")) == "deadlock"
    assert symptom_of(Verdict("failed", "KeyError: 'user'")) is None
    assert symptom_of(Verdict("stalled")) == "deadlock"
