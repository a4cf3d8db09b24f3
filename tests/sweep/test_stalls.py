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
