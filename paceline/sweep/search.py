"""A search: optuna proposes which cases of a large matrix are tried, one trial each; the best of them are then raced against the baseline.

    search = Searcher(cases, "lr=0.001", settings, seed=0, sampler="tpe", num_trials=20, build_race=lambda names: Racer(names, …))
    search.next(), search.observe(result), search.ranking()       # the interface of a race

The best of many single trials looks better than it is. So what the search measured only chooses the finalists; the verdicts on them
come from rounds of their own. The same results in the same order give the same proposals: a killed sweep goes on where it was.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from paceline.errors import UsageError
from paceline.sweep.evidence import ENDED, Assignment, RaceSettings, TrialResult, Verdict
from paceline.sweep.race import Race
from paceline.sweep.ranking import Ranking

SEARCH_ROUND = 1
"""All trials of the search are of this round; those of the race come after it."""
_MOST_ASKED = 20
"""proposals in a row that were tried before; then one that was not is drawn"""
_WORDS = {"oom": "does not fit", "diverged": "diverges"}
Point = tuple[int, ...]


class Searcher:
    """First the search, then the race of its finalists."""

    def __init__(
        self,
        cases: Mapping[str, Mapping[str, Any]],
        baseline: str,
        settings: RaceSettings,
        seed: int,
        *,
        sampler: Literal["random", "tpe"],
        num_trials: int,
        build_race: Callable[[Sequence[str]], Race],
        num_finalists: int = 3,
    ) -> None:
        self._cases, self._baseline, self._settings = cases, baseline, settings
        self._num_trials = min(num_trials, len(cases))
        self._num_finalists = num_finalists
        self._build_race = build_race
        self._space = Space(cases)
        self._proposer = Proposer(self._space, settings.direction, sampler, seed)
        self._asked: list[str] = []
        self._results: dict[str, TrialResult] = {}
        self._idle = build_race(list(cases))
        """of all cases, and never run: what a ranking is before there is a race"""
        self._race: Race | None = None

    def next(self) -> Assignment | None:
        """None while results are awaited that decide who is raced, and when that is over."""
        if len(self._asked) < self._num_trials:
            name = self._baseline if not self._asked else None
            case = self._proposer.propose(name, self._asked)
            self._asked.append(case)
            why = f"search, {len(self._asked)} of {self._num_trials}"
            return Assignment(case, SEARCH_ROUND, self._settings.steps, why=why)
        if len(self._results) < len(self._asked):
            return None
        if self._race is None:
            self._race = self._build_race(self._finalists())
        assignment = self._race.next()
        return replace(assignment, round=assignment.round + SEARCH_ROUND) if assignment is not None else None

    def observe(self, result: TrialResult) -> None:
        if result.round > SEARCH_ROUND:
            assert self._race is not None
            self._race.observe(replace(result, round=result.round - SEARCH_ROUND))
            return
        self._results[result.case] = result
        self._proposer.tell(result.case, self._value(result))

    def verdicts(self) -> Mapping[str, Verdict]:
        raced = self._race.ranking().verdicts if self._race is not None else {}
        return {name: self._searched(name) for name in self._cases} | dict(raced)

    def ranking(self) -> Ranking:
        """The race's, with the cases behind it that only the search tried, the best first, and then those nobody did."""
        raced = (self._race or self._idle).ranking()
        first = raced.order if self._race is not None else ()
        rest = sorted((name for name in self._cases if name not in first), key=self._place)
        return replace(raced, order=(*first, *rest), verdicts=self.verdicts())

    def full_repeats(self) -> int:
        return (self._race or self._idle).full_repeats()

    def _finalists(self) -> list[str]:
        """The best of the search, and the baseline, which every comparison needs."""
        able = [name for name in self._asked if self._value(self._results[name]) is not None]
        best = sorted(able, key=self._place)[: self._num_finalists]
        return best if self._baseline in best else [*best, self._baseline]

    def _place(self, name: str) -> tuple[bool, bool, float]:
        """Those with a number first, those that could not run last."""
        result = self._results.get(name)
        value = self._value(result) if result is not None else None
        sign = 1 if self._settings.direction == "min" else -1
        return value is None and result is not None, value is None, sign * value if value is not None else 0.0

    def _value(self, result: TrialResult) -> float | None:
        if result.status not in ENDED:
            return None
        return result.samples_per_s if self._settings.objective == "throughput" else result.metric

    def _searched(self, name: str) -> Verdict:
        """One trial proves nothing: a case that was not raced is undecided, unless it cannot run at all."""
        result = self._results.get(name)
        if result is None:
            why = "being tried" if name in self._asked else f"not tried: the search has {self._num_trials} trials"
            return Verdict("undecided", evidence=why)
        value = self._value(result)
        if value is None:
            return Verdict(
                _WORDS.get(result.status, "failed"), complete=False, evidence=f"{result.status} in the search"
            )
        return Verdict("undecided", value, trials=1, evidence="one trial in the search, not among its finalists")


class Space:
    """The cases as points: on each axis the place of its value. An axis of numbers is in their order."""

    def __init__(self, cases: Mapping[str, Mapping[str, Any]]) -> None:
        names = list(dict.fromkeys(axis for values in cases.values() for axis in values))
        self.axes: dict[str, bool] = {}
        """axis -> whether its values have an order"""
        self.sizes: dict[str, int] = {}
        places: dict[str, dict[str, int]] = {}
        for axis in names:
            # A case of a list may lack a key that others have: that is a value of its own.
            values = {_key(case, axis): case.get(axis) for case in cases.values()}
            is_ordered = all(
                isinstance(value, int | float) and not isinstance(value, bool) for value in values.values()
            )
            order = sorted(values, key=lambda key, own=values: own[key]) if is_ordered else list(values)  # type: ignore[misc]
            if len(order) > 1:
                self.axes[axis], self.sizes[axis] = is_ordered, len(order)
                places[axis] = {key: place for place, key in enumerate(order)}
        self.point_of: dict[str, Point] = {
            name: tuple(places[axis][_key(values, axis)] for axis in self.axes) for name, values in cases.items()
        }
        self.case_at = {point: name for name, point in self.point_of.items()}


def _key(values: Mapping[str, Any], axis: str) -> str:
    return json.dumps(values[axis], sort_keys=True, default=str) if axis in values else ""


class Proposer:
    """optuna's study behind two words: propose a case that was not tried, and tell what came of it."""

    def __init__(self, space: Space, direction: str, sampler: str, seed: int) -> None:
        check_optuna(sampler)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        self._states = optuna.trial.TrialState
        goal = "minimize" if direction == "min" else "maximize"
        self._study = optuna.create_study(direction=goal, sampler=samplers[sampler](seed=seed))
        self._space = space
        kinds = optuna.distributions
        self._distributions = {
            axis: kinds.IntDistribution(0, size - 1) if space.axes[axis] else kinds.CategoricalDistribution(range(size))
            for axis, size in space.sizes.items()
        }
        self._random = random.Random(seed)
        self._open: dict[str, Any] = {}

    def propose(self, wanted: str | None, tried: Sequence[str]) -> str:
        """A case that is not among those tried: the wanted one, the sampler's, or one drawn from the rest."""
        known = set(tried)
        for _ in range(_MOST_ASKED if wanted is None else 0):
            trial = self._study.ask(self._distributions)
            case = self._space.case_at.get(tuple(trial.params[axis] for axis in self._space.axes))
            if case is not None and case not in known:
                self._open[case] = trial
                return case
            # Left out by the plan, or tried before: it says nothing about where to look.
            self._study.tell(trial, state=self._states.FAIL)
        rest = [case for case in self._space.point_of if case not in known]
        case = wanted if wanted is not None else self._random.choice(rest)
        self._study.enqueue_trial(dict(zip(self._space.axes, self._space.point_of[case], strict=True)))
        self._open[case] = self._study.ask(self._distributions)
        return case

    def tell(self, case: str, value: float | None) -> None:
        """None: it could not run, which counts as worse than any number."""
        trial = self._open.pop(case)
        if value is None:
            self._study.tell(trial, state=self._states.PRUNED)
        else:
            self._study.tell(trial, value)


def check_optuna(sampler: str) -> None:
    """UsageError where it is not installed; before a sweep has a directory."""
    if importlib.util.find_spec("optuna") is None:
        what = f"a search with {sampler} needs optuna, which is not installed"
        raise UsageError(what, "the plan's search", "pip install 'paceline[search]', or leave the search out")
