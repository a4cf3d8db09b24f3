"""Which trial to run next: the full grid in shuffled rounds, or a race that ends cases as soon as their verdict is certain.

Pure: no clock, no files, no processes. `next` and `observe` are all a driver needs, and the same results in any order lead to the
same next trial, so a driver that was killed hands over what its ledger has and goes on.

A race goes in rounds, each case at most once in each, in an order of its own:
- Round 1: every case, a short trial; the baseline a whole one, whose losses are what the others are held against.
- After each round every case is compared with the leader by one fit over all trials (comparison.py, drift.py), with intervals that hold
  for all cases and all looks together: the error is shared out over all ordered pairs of cases (any of them may wrongly lead,
  and any other look slower) and over the looks (look n gets 1 / n(n+1) of it: the parts add up to the whole, however many looks there
  are). A union bound needs no independence between looks, which share their data, and no fixed end. Cases that are certainly slower than the leader, or
  certainly within the margin of it, run no more.
- The rest run on. What they may cost together is a share of the full grid's cost; while not all of them can be afforded
  four times more, only the most hopeful do. Others are "undecided" then, not slower: nobody claims what was not measured.
- Where that share is too little for a few whole trials of each front-runner (few cases, few repeats), they have them nevertheless, up
  to half of the grid (finals.py).
- Who is hopeful is said by a case's own trials and by those that share values with it (kinship.py). Who is out by trials that may be
  accidents (mishap.py) gets another short one.
- Only the first round is short. What a short trial cannot know of a whole one is part of its doubt (observation.py), so it can say
  who is far behind, never who wins.
- Nobody wins without a whole trial, and the leader has its first early: a case that trains badly late is found, and those it had
  beaten come back.
A validation metric is compared at equal samples, so its trials are always whole, and the race saves rounds alone.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.sweep.budget import Costs, repeats_by_noise
from paceline.sweep.evidence import ENDED, Assignment, RaceSettings, TrialResult, Verdict
from paceline.sweep.finals import plan_finals
from paceline.sweep.kinship import hopes_of
from paceline.sweep.observation import value_of
from paceline.sweep.power import LEAST_REPEATS
from paceline.sweep.ranking import TRIES, Ranking, rank_cases

_FIRST_SHARE = 5
"""of a whole trial: the first round"""
_PILOT_ROUNDS = 2
"""of a full grid: from their noise follows how many it takes"""
_PILOT = 6
"""cases that run in the second round at least: without them nobody would know the noise"""
_PARTS = 4
"""a round takes at most one of so many parts of what is left: who is behind after it leaves more to the others"""
_MOST_LOOKS = 300
_SLACK = 1.04
"""how much dearer a round may turn out than it was thought"""


@dataclass(frozen=True)
class Round:
    """Trials that are neighbours in time."""

    number: int
    steps: int
    """by which they are compared; single ones may be longer"""
    trials: tuple[Assignment, ...]


class Racer:
    """Hands out trials and judges their results."""

    def __init__(
        self,
        cases: Sequence[str],
        baseline: str,
        settings: RaceSettings,
        seed: int,
        values: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """`values`: what distinguishes each case, by axis."""
        assert baseline in cases
        assert len(set(cases)) == len(cases)
        self.cases = tuple(cases)
        self.baseline = baseline
        self.settings = settings
        self.rounds: list[Round] = []
        self._seed = seed
        self._values = values or {}
        self._results: list[TrialResult] = []
        self._is_decided = False
        self._out: set[tuple[str, int]] = set()
        self._grid_rounds: int | None = None
        self._ranked: tuple[tuple[int, int, bool], Ranking] | None = None

    @property
    def is_decided(self) -> bool:
        """Nothing is left to run (whether anybody won is the verdicts'); a `next` without an answer may also only be waiting."""
        return self._is_decided

    def next(self) -> Assignment | None:
        """None: decided, or nothing to do before what is out comes back."""
        while not self._is_decided:
            done = {(result.case, result.round) for result in self._results if result.round == len(self.rounds)}
            waiting = [t for t in (self.rounds[-1].trials if self.rounds else ()) if (t.case, t.round) not in done]
            for trial in waiting:
                if (trial.case, trial.round) not in self._out:
                    self._out.add((trial.case, trial.round))
                    return trial
            if waiting:
                return None
            planned = self._plan_grid() if not self.settings.racing else self._plan_race()
            if planned is None:
                self._is_decided = True
            else:
                self.rounds.append(planned)
        return None

    def observe(self, result: TrialResult) -> None:
        """In any order, and also what was run before this racer began."""
        assert result.case in self.cases
        self._results.append(result)

    def verdicts(self) -> Mapping[str, Verdict]:
        return self.ranking().verdicts

    def ranking(self) -> Ranking:
        """As far as it is known."""
        key = len(self.rounds), len(self._results), self._is_decided
        if self._ranked is None or self._ranked[0] != key:
            lengths = {planned.number: planned.steps for planned in self.rounds}
            looks = max(len(self.rounds), 1)
            ranking = rank_cases(
                self.cases,
                self.results(),
                self.baseline,
                self.settings,
                looks,
                lengths,
                self._field(),
                is_final=self._is_decided,
            )
            self._ranked = key, ranking
        return self._ranked[1]

    def results(self) -> list[TrialResult]:
        """What counts so far: nothing of rounds that are not planned yet, so that what is known early decides nothing early."""
        known = [r for r in self._results if r.round <= len(self.rounds)]
        # Sums must come out the same to the last bit, in whatever order results came.
        return sorted(known, key=lambda r: (r.round, r.case))

    def full_repeats(self) -> int:
        """Rounds of the full grid: what the plan says, or what the noise asks for."""
        if self.settings.repeats is not None:
            return self.settings.repeats
        ranking = self.ranking()
        if ranking.comparison is None or len(self.rounds) < _PILOT_ROUNDS:
            return LEAST_REPEATS
        sizes = [len(planned.trials) for planned in self.rounds]
        return repeats_by_noise(ranking.ordinary, sizes, len(self.cases), self.settings)

    def _field(self) -> set[str] | None:
        """Among whom the leader is sought: whoever ran in the last round of whole trials, or as often as one of those."""
        tried = Counter(result.case for result in self.results() if result.status in ENDED)
        for planned in reversed(self.rounds):
            running = {trial.case for trial in planned.trials}
            if len(running) > 1 and (planned.number == 1 or planned.steps >= self.settings.steps):
                # Not by a single trial: that is luck.
                fewest = max(min(tried[case] for case in running), 2)
                return running | {case for case, count in tried.items() if count >= fewest}
        return None

    def _plan_grid(self) -> Round | None:
        number = len(self.rounds) + 1
        if number == _PILOT_ROUNDS + 1:
            self._grid_rounds = self.full_repeats()
        if number > (self._grid_rounds or self.settings.repeats or _PILOT_ROUNDS):
            return None
        running = [case for case in self.cases if not self._is_hopeless(case)]
        why = f"round {number} of the full grid"
        return self._round(number, self.settings.steps, running, {}, why) if running else None

    def _is_hopeless(self, case: str) -> bool:
        """It does not fit, or was tried twice and has no number."""
        own = [result for result in self.results() if result.case == case]
        has_number = any(r.status in ENDED and value_of(r, self.settings) is not None for r in own)
        return any(r.status == "oom" for r in own) or (not has_number and len(own) >= TRIES)

    def _plan_race(self) -> Round | None:
        number, settings = len(self.rounds) + 1, self.settings
        if number == 1:
            steps = self._whole_windows(settings.steps / _FIRST_SHARE)
            return self._round(1, steps, self.cases, {self.baseline: settings.steps}, "every case, a short trial")
        if number > _MOST_LOOKS:
            return None
        ranking = self.ranking()
        if ranking.comparison is None or ranking.leader is None:
            retry = self._retry(ranking)
            return self._round(number, settings.steps, retry, {}, "no number yet, once more") if retry else None
        again = self._second_chance(ranking, number)
        if again:
            # The leader runs with them, or nobody would know what the round did to them.
            steps = self.rounds[0].steps
            return self._round(
                number, steps, [ranking.leader, *again], {}, "a second short trial: one may be an accident"
            )
        finalists = self._finals(ranking, number)
        if finalists:
            why = f"{len(finalists)} may be the best, with too few trials to tell"
            return self._round(number, settings.steps, [*finalists, *self._retry(ranking)], {}, why)
        running = self._choose(ranking, number)
        if len(running) > 1:
            why = f"{len(ranking.contenders) + 1} of {len(self.cases)} may still win, {len(running)} run"
            return self._round(number, settings.steps, running, {}, why)
        if not self._is_confirmed(ranking.leader) and not self._ran_alone(ranking.leader):
            why = "the leader, a whole trial before it wins"
            return self._round(number, settings.steps, [ranking.leader], {}, why)
        return None

    def _second_chance(self, ranking: Ranking, number: int) -> list[str]:
        """Cases that are out by trials that may be accidents, the most hopeful first, as far as half of what is left pays for short ones.

        While others may still win, only those that would, if they are what their kin are.
        """
        if not ranking.suspects or (ranking.contenders and number <= 3):
            return []
        assert ranking.comparison is not None
        assert ranking.leader is not None
        hopes = hopes_of(ranking.comparison, self._values, ranking.suspects)
        reached = {case: hopes[case].effect + 2 * hopes[case].error for case in ranking.suspects}
        costs = Costs(self.results(), self.settings)
        left, chosen = self._left(ranking, costs) / 2, list[str]()
        for case in sorted(ranking.suspects, key=lambda case: -reached[case]):
            left -= costs.trial(case, self.rounds[0].steps)
            if left < 0 or (ranking.contenders and reached[case] <= hopes[ranking.leader].effect):
                break
            chosen.append(case)
        return chosen

    def _left(self, ranking: Ranking, costs: Costs) -> float:
        """Device-seconds that may still be spent, without what the leader's first whole trial will take."""
        assert ranking.leader is not None
        whole = 0.0 if self._is_confirmed(ranking.leader) else costs.trial(ranking.leader, self.settings.steps)
        return self._remaining(self.settings.budget_share, costs) - whole

    def _remaining(self, share: float, costs: Costs) -> float:
        """Of this share of the full grid's device-seconds."""
        spent = sum(result.device_s for result in self.results())
        grid = self.full_repeats() * sum(costs.trial(case, self.settings.steps) for case in self.cases)
        return (share * grid - spent) / _SLACK

    def _choose(self, ranking: Ranking, number: int) -> list[str]:
        """Who runs on: the leader and whoever may still beat it, as far as the budget goes."""
        comparison, leader = ranking.comparison, ranking.leader
        assert comparison is not None
        assert leader is not None
        known = [case for case in (*ranking.contenders, *ranking.suspects) if case in comparison.effects]
        # What is known badly gets the benefit of its doubt.
        hopes = hopes_of(comparison, self._values, ranking.suspects)
        reached = {case: hopes[case].effect + hopes[case].error for case in known}
        known = [c for c in known if c in ranking.contenders or reached[c] + hopes[c].error > hopes[leader].effect]
        rivals = sorted(known, key=lambda case: -reached[case])
        retry = self._retry(ranking)
        if not rivals and not retry:
            return []
        costs = Costs(self.results(), self.settings)
        price = statistics.fmean(costs.trial(case, self.settings.steps) for case in (leader, *rivals))
        affordable = int(self._left(ranking, costs) / price) if price > 0 else 2 * len(self.cases)
        running = [leader, *rivals]
        if self.settings.repeats is None and number <= 3:
            if number == 3:
                # The same once more, whatever is left: only whole trials that ran twice tell the noise, and so what may be spent.
                running = [case for case in running if self._is_confirmed(case)]
            return [*running[: max(affordable // _PARTS, _PILOT)], *retry]
        if affordable < 2:
            # Who failed once is tried again all the same: else an accident would decide.
            return [leader, *retry] if retry else []
        # The noise, and with it the budget, is known badly at first: the field grows no faster than that knowledge.
        most = (
            min(affordable // _PARTS, _PILOT * (number - 2)) if self.settings.repeats is None else affordable // _PARTS
        )
        running = running[: max(most, 2)]
        return [*running, *retry]

    def _finals(self, ranking: Ranking, number: int) -> list[str]:
        """Front-runners that have too few trials, where the race's share does not pay for them."""
        if self.settings.repeats is None and number <= _PILOT_ROUNDS + 1:
            return []
        assert ranking.comparison is not None
        hopes = hopes_of(ranking.comparison, self._values, ranking.suspects)
        ended = [r for r in self.results() if r.status in ENDED]
        whole = Counter(r.case for r in ended if self._assigned(r) >= self.settings.steps)
        costs = Costs(self.results(), self.settings)
        price = {case: costs.trial(case, self.settings.steps) for case in self.cases}
        within = self._left(ranking, costs)
        # The leader's whole trial is among the finalists' own.
        most = self._remaining(self.settings.most_share, costs)
        return plan_finals(ranking, hopes, whole, price, within, most)

    def _retry(self, ranking: Ranking) -> list[str]:
        """Cases that failed once, or ended without a number: accidents happen, but not for ever."""
        known = ranking.comparison.effects if ranking.comparison else {}
        tried = Counter(result.case for result in self.results())
        waiting = [case for case in self.cases if case not in known and tried[case] < TRIES]
        return [case for case in waiting if ranking.verdicts[case].verdict == "undecided"]

    def _is_confirmed(self, case: str) -> bool:
        """A whole trial was asked of it and ended well.

        What was asked counts, not the steps that were counted: a script that tells every 50th step has fewer of those, and so
        has a larger batch at equal samples.
        """
        ended = [r for r in self.results() if r.case == case and r.status == "ok"]
        return any(self._assigned(r) >= self.settings.steps for r in ended)

    def _ran_alone(self, case: str) -> bool:
        """A round was spent on confirming it: if that did not help, another will not."""
        return any([trial.case for trial in planned.trials] == [case] for planned in self.rounds)

    def _assigned(self, result: TrialResult) -> int:
        trials = self.rounds[result.round - 1].trials
        return next((t.steps for t in trials if t.case == result.case), self.rounds[result.round - 1].steps)

    def _whole_windows(self, steps: float) -> int:
        window, most = self.settings.window, self.settings.steps
        if self.settings.objective != "throughput":
            return most
        return min(max(math.ceil(steps / window) * window, 2 * window), most)

    def _round(self, number: int, steps: int, running: Sequence[str], longer: Mapping[str, int], why: str) -> Round:
        order = list(running)
        random.Random(f"{self._seed}/{number}").shuffle(order)
        trials = tuple(Assignment(case, number, longer.get(case, steps), why=why) for case in order)
        return Round(number, steps, trials)
