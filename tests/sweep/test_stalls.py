"""Stalled windows: accidents do not count, and whoever stalls by itself pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.sweep.evidence import TrialResult
from paceline.sweep.ranking import rank_cases
from paceline.sweep.stalls import find_stalls
from tests.sweep.trials import SETTINGS, trial

GRID = replace(SETTINGS, racing=False)
JITTER = (1.0, 1.004, 0.996, 1.002, 0.998)


def stalling(case: str, rate: float, round: int, stalls: tuple[int, ...] = (), slow: float = 0.4) -> TrialResult:
    """Ten windows, some of them slow; the pace is over all the time there was."""
    windows = tuple(rate * JITTER[(i + round) % 5] * (slow if i in stalls else 1.0) for i in range(10))
    pace = len(windows) / sum(1 / window for window in windows)
    return replace(trial(case, pace, round), windows=windows)


def test_a_window_that_stood_still_does_not_count() -> None:
    results = [stalling(case, 1000.0, r) for case in ("a", "b", "c") for r in range(1, 6)]
    results[1] = stalling("a", 1000.0, 2, stalls=(7,))
    assert find_stalls(results) == [frozenset({7}) if index == 1 else frozenset() for index in range(15)]
    verdicts = rank_cases(["a", "b", "c"], results, "a", GRID, is_final=True).verdicts
    assert verdicts["a"].ratio == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("stalls", [(7,), (2, 5, 8)], ids=["once in each trial", "in many windows"])
def test_a_case_that_stalls_by_itself_pays_in_full(stalls: tuple[int, ...]) -> None:
    """It would win by 4 % if its stalls were left out; over true wall time it is slower."""
    fair = [stalling(case, 1000.0, r) for case in ("a", "b", "c") for r in range(1, 6)]
    own = [stalling("stalls", 1040.0, r, stalls=stalls) for r in range(1, 6)]
    ranking = rank_cases(["a", "b", "c", "stalls"], fair + own, "a", GRID, is_final=True)
    paid = ranking.verdicts["stalls"]
    assert paid.verdict == "slower"
    assert paid.value == pytest.approx(sum(r.samples_per_s or 0 for r in own) / 5, rel=0.01)


def test_what_most_trials_do_is_no_accident() -> None:
    """Every trial stops once, and one case for longer: that is what it costs."""
    results = [
        stalling(case, 1000.0, r, stalls=(4,), slow=0.1 if case == "c" else 0.4)
        for case in ("a", "b", "c")
        for r in range(1, 6)
    ]
    assert find_stalls(results) == [frozenset()] * 15
    assert rank_cases(["a", "b", "c"], results, "a", GRID, is_final=True).verdicts["c"].verdict == "slower"


def test_a_slow_beginning_is_no_stall_and_few_windows_know_none() -> None:
    usual = [stalling("a", 1000.0, r) for r in range(1, 6)]
    windows = tuple(1000.0 * pace for pace in (0.88, 0.95, *[1.0] * 8))
    assert find_stalls([*usual, replace(trial("b", 980.0), windows=windows)]) == [frozenset()] * 6
    assert find_stalls([*usual, replace(trial("b", 800.0), windows=(1000.0, 400.0, 1000.0))]) == [frozenset()] * 6


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_of_two_cases_the_one_that_stalls_in_every_trial_does_not_win(repeats: int) -> None:
    rounds = range(1, repeats + 1)
    own = [stalling("stalls", 1000.0, r, stalls=(6,), slow=0.3) for r in rounds]
    fair = [stalling("steady", 950.0, r) for r in rounds]
    ranking = rank_cases(["stalls", "steady"], own + fair, "steady", GRID, is_final=True)
    assert ranking.leader == "steady"


def test_cases_that_share_a_fault_do_not_excuse_each_other() -> None:
    """Nine of 36 stall in every trial: their stalls are no rate by which each of them is innocent."""
    results = [
        stalling(f"w={c % 4} {c}", *((1040.0, r, (3,)) if c % 4 == 0 else (1000.0, r)))
        for c in range(36)
        for r in range(1, 4)
    ]
    ranking = rank_cases([f"w={c % 4} {c}" for c in range(36)], results, "w=1 1", GRID, is_final=True)
    assert all(not case.startswith("w=0") for case in ranking.order[:27])


def test_windows_of_a_counter_that_moves_in_leaps_say_nothing() -> None:
    leaping = [replace(trial(case, 8.0, r), windows=(0.0, 16.0) * 5) for case in ("a", "b") for r in (1, 2)]
    ranking = rank_cases(["a", "b"], leaping, "a", SETTINGS, lengths={1: 10, 2: SETTINGS.steps})
    assert ranking.leader is not None
