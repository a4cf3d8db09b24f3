from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import run_command
from paceline.errors import UsageError
from paceline.sweep.evidence import Assignment, RaceSettings, TrialResult, Verdict
from paceline.sweep.search import SEARCH_ROUND, Searcher, Space

needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="optuna is not installed (pip install 'paceline[search]')"
)
AXES: dict[str, list[Any]] = {"lr": [0.1, 0.01, 0.001, 0.0001], "mb": list(range(10)), "mode": ["none", "bf16", "fp16"]}
CASES = {
    " ".join(f"{axis}={value}" for axis, value in zip(AXES, values, strict=True)): dict(zip(AXES, values, strict=True))
    for values in itertools.product(*AXES.values())
}
BASELINE = next(iter(CASES))


def pace(values: Mapping[str, Any]) -> float:
    """A hill with its top at mb=6, mode=bf16, lr=0.001."""
    steps = abs(AXES["lr"].index(values["lr"]) - 2)
    return 100.0 - 3 * (values["mb"] - 6) ** 2 - 10 * steps - (15 if values["mode"] != "bf16" else 0)


@dataclass(frozen=True)
class Ranked:
    order: tuple[str, ...]
    verdicts: Mapping[str, Verdict]
    noise: float = 0.5


@dataclass
class TwoRounds:
    """A race that runs each finalist twice and names the first."""

    names: Sequence[str]
    seen: list[TrialResult] = field(default_factory=list)
    asked: int = 0

    def next(self) -> Assignment | None:
        self.asked += 1
        if self.asked > 2 * len(self.names):
            return None
        return Assignment(self.names[(self.asked - 1) % len(self.names)], 1 + (self.asked - 1) // len(self.names), 280)

    def observe(self, result: TrialResult) -> None:
        self.seen.append(result)

    def ranking(self) -> Ranked:
        verdicts = {name: Verdict("winner" if name == self.names[0] else "slower") for name in self.names}
        return Ranked(tuple(self.names), verdicts)

    def full_repeats(self) -> int:
        return len(self.names)


def build(
    cases: Mapping[str, Mapping[str, Any]] = CASES, num_trials: int = 20, **more: Any
) -> tuple[Searcher, list[TwoRounds]]:
    races: list[TwoRounds] = []

    def build_race(names: Sequence[str]) -> TwoRounds:
        if len(names) == len(cases) > 1:
            return TwoRounds(names)  # the idle one
        races.append(TwoRounds(names))
        return races[-1]

    given = {"sampler": "tpe", "seed": 3} | more
    settings = RaceSettings(direction=given.pop("direction", "max"), objective=given.pop("objective", "throughput"))
    baseline = next(iter(cases))
    seed = given.pop("seed")
    return Searcher(cases, baseline, settings, seed, num_trials=num_trials, build_race=build_race, **given), races


def drive(
    search: Searcher, cases: Mapping[str, Mapping[str, Any]] = CASES, status: Mapping[str, str] = {}
) -> list[Assignment]:
    found = []
    while (assignment := search.next()) is not None:
        found.append(assignment)
        # A trial that diverges or takes too long has a pace, too, and it may be the best one.
        bonus = 0.0 if assignment.case not in status else 1000.0
        value = pace(cases[assignment.case]) + bonus
        state = status.get(assignment.case, "ok")
        search.observe(TrialResult(assignment.case, assignment.round, state, samples_per_s=value))
    return found


@needs_optuna
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_each_case_is_tried_once_the_baseline_first_and_then_the_best_are_raced(sampler: str) -> None:
    search, races = build(sampler=sampler)
    found = drive(search)
    searched = [each.case for each in found if each.round == SEARCH_ROUND]
    assert len(searched) == len(set(searched)) == 20
    assert searched[0] == BASELINE
    best = sorted(searched, key=lambda name: -pace(CASES[name]))[:3]
    (race,) = races
    assert list(race.names) == [*best, BASELINE]
    raced = [each for each in found if each.round > SEARCH_ROUND]
    assert {each.round for each in raced} == {2, 3}  # of their own: nothing of the search is counted again
    assert [result.round for result in race.seen] == [1] * 4 + [2] * 4
    verdicts = search.verdicts()
    assert verdicts[best[0]].verdict == "winner"
    assert set(verdicts) == set(CASES)
    assert "not tried" in verdicts[next(name for name in CASES if name not in searched)].evidence
    other = next(name for name in searched if name not in race.names)
    assert (verdicts[other].verdict, verdicts[other].value) == ("undecided", pace(CASES[other]))
    ranking = search.ranking()
    assert (ranking.verdicts, ranking.noise, search.full_repeats()) == (verdicts, 0.5, 4)
    behind = ranking.order[4 : len(searched)]
    assert (list(ranking.order[:4]), set(behind)) == (list(race.names), set(searched) - set(race.names))
    paces = [pace(CASES[name]) for name in behind]
    assert paces == sorted(paces, reverse=True)
    assert sorted(ranking.order) == sorted(CASES)


@needs_optuna
def test_before_the_race_nobody_has_won() -> None:
    search, races = build()
    assert {verdict.verdict for verdict in search.ranking().verdicts.values()} == {"undecided"}
    assert sorted(search.ranking().order) == sorted(CASES)
    assert search.full_repeats() == len(CASES)
    assert not races


@needs_optuna
def test_tpe_comes_nearer_to_the_top_than_chance() -> None:
    def best(sampler: str, seed: int) -> float:
        search, _ = build(sampler=sampler, seed=seed, num_trials=30)
        return max(pace(CASES[each.case]) for each in drive(search) if each.round == SEARCH_ROUND)

    seeds = range(12)
    assert sum(best("tpe", seed) for seed in seeds) > sum(best("random", seed) for seed in seeds)


@needs_optuna
def test_the_same_results_give_the_same_proposals() -> None:
    whole = drive(build()[0])
    assert drive(build()[0]) == whole
    assert [each.case for each in drive(build(seed=4)[0])] != [each.case for each in whole]


@needs_optuna
def test_what_cannot_run_is_a_verdict_and_no_finalist() -> None:
    plain = [each.case for each in drive(build()[0])]
    status = {plain[1]: "oom", plain[2]: "diverged", plain[3]: "timeout"}
    search, races = build()
    drive(search, status=status)
    verdicts = search.verdicts()
    assert [verdicts[name].verdict for name in status] == ["does not fit", "diverges", "failed"]
    assert not set(status) & set(races[0].names)
    assert set(search.ranking().order[-3:]) == set(status)


@needs_optuna
def test_all_failed_leaves_the_baseline_to_be_raced() -> None:
    search, races = build(num_trials=4)
    drive(search, status=dict.fromkeys(CASES, "failed"))
    assert list(races[0].names) == [BASELINE]


@needs_optuna
def test_several_may_be_under_way_and_the_race_waits_for_all() -> None:
    search, races = build(num_trials=6)
    open_trials = [search.next() for _ in range(6)]
    cases = [each.case for each in open_trials if each is not None]
    assert len(set(cases)) == 6
    assert search.next() is None
    random.Random(1).shuffle(cases)
    for case in cases:
        assert not races
        search.observe(TrialResult(case, SEARCH_ROUND, "ok", samples_per_s=pace(CASES[case])))
    assert search.next() is not None
    assert races


@needs_optuna
def test_a_small_or_torn_matrix_is_searched_to_its_end() -> None:
    torn = {name: values for number, (name, values) in enumerate(CASES.items()) if number % 9 == 0}
    search, _ = build(torn, num_trials=500)
    assert {each.case for each in drive(search, torn)} == set(torn)
    one = {"as it is": {}}
    alone, races = build(one, num_trials=5)
    first = alone.next()
    assert first is not None
    alone.observe(TrialResult(first.case, first.round, "ok", samples_per_s=1.0))
    assert alone.next() is not None
    assert list(races[-1].names) == ["as it is"]


@needs_optuna
def test_less_of_a_metric_may_be_better() -> None:
    search, races = build(direction="min", objective="loss_1")
    while (assignment := search.next()) is not None and assignment.round == SEARCH_ROUND:
        search.observe(TrialResult(assignment.case, 1, "ok", samples_per_s=1.0, metric=pace(CASES[assignment.case])))
    values = [pace(CASES[name]) for name in races[0].names[:3]]
    tried = sorted(verdict.value for verdict in search.verdicts().values() if verdict.value is not None)
    assert values == sorted(values)
    assert all(value >= values[-1] for value in tried)


def test_a_space_has_numbers_in_order_and_keeps_true_apart_from_one() -> None:
    space = Space({"a": {"x": 10, "y": True, "z": 1}, "b": {"x": 9, "y": 1, "z": 1}, "c": {"x": 2.5, "z": 1}})
    assert space.axes == {"x": True, "y": False}  # z has one value
    assert [space.point_of[name][0] for name in "abc"] == [2, 1, 0]
    assert len({space.point_of[name][1] for name in "abc"}) == 3
    assert space.case_at[space.point_of["b"]] == "b"


def test_without_optuna_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="needs optuna, which is not installed") as caught:
        build()
    assert "paceline[search]" in caught.value.problems[0].do


def test_without_optuna_a_sweep_is_refused_before_it_has_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text("recipe: sasrec\nset: {launch.gpus: []}\naxes: {run.seed: [1, 2]}\nsearch: tpe\n")
    for flag in (["--dry-run"], []):
        assert run_command(["sweep", "plan.yaml", "--out", "s", *flag]) == 2
        assert "needs optuna" in capsys.readouterr().err
    assert not Path("s").exists()
