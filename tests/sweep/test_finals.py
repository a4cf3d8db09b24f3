"""Front-runners of a small race: who gets whole trials beyond the race's share, and when nobody does."""

from __future__ import annotations

from dataclasses import replace

from paceline.sweep.evidence import Verdict
from paceline.sweep.finals import plan_finals
from paceline.sweep.kinship import Hope
from paceline.sweep.ranking import Ranking

HOPES = {"a": Hope(0.0, 0.05), "b": Hope(-0.05, 0.05), "c": Hope(-0.1, 0.05), "d": Hope(-0.4, 0.05)}
RANKING = Ranking(tuple(HOPES), dict.fromkeys(HOPES, Verdict("undecided")), "a", ("b", "c"), ("d",), None)
PRICE = dict.fromkeys(HOPES, 10.0)


def finals(
    whole: dict[str, int] | None = None, within: float = 20.0, most: float = 200.0, ranking: Ranking = RANKING
) -> list[str]:
    return plan_finals(ranking, HOPES, whole or {}, PRICE, within, most)


def test_who_may_be_the_best_runs_and_who_is_clearly_behind_does_not() -> None:
    assert finals() == ["a", "b", "c"]
    assert finals({"a": 4, "b": 4, "c": 1}) == ["a", "c"], "the leader is who it is compared with"


def test_nobody_runs_where_the_share_pays_for_it_or_all_have_enough() -> None:
    assert finals(within=120.0) == []
    assert finals(dict.fromkeys(HOPES, 4), within=-5.0) == [], "nothing is missing, but the share is overdrawn"


def test_no_more_is_spent_than_there_is() -> None:
    assert finals(most=25.0) == ["a", "b"]
    assert finals(most=15.0) == [], "a leader alone compares nobody"


def test_a_case_that_fails_has_no_part_in_it() -> None:
    failing = {**RANKING.verdicts, "b": Verdict("undecided", complete=False)}
    assert finals(ranking=replace(RANKING, verdicts=failing)) == ["a", "c"]
