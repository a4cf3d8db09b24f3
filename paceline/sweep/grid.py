"""Stand-in for the race until it lands: the full grid, interleaved and shuffled, with the interface of a Racer."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

from paceline.sweep.evidence import Assignment, RaceSettings, TrialResult, Verdict


class Racer:
    def __init__(self, cases: Sequence[str], baseline: str, settings: RaceSettings, seed: int) -> None:
        self._cases, self._settings = list(cases), settings
        self._results: list[TrialResult] = []
        self._todo: list[Assignment] = []
        for number in range(1, (settings.repeats or 2) + 1):
            order = list(cases)
            random.Random(f"{seed}-{number}").shuffle(order)
            self._todo += [Assignment(case, number, settings.steps, why=f"round {number}") for case in order]

    def next(self) -> Assignment | None:
        return self._todo.pop(0) if self._todo else None

    def observe(self, result: TrialResult) -> None:
        self._results.append(result)

    def verdicts(self) -> Mapping[str, Verdict]:
        found = {}
        for case in self._cases:
            own = [r for r in self._results if r.case == case]
            values = [
                v
                for r in own
                if r.status == "ok"
                and (v := r.samples_per_s if self._settings.objective == "throughput" else r.metric) is not None
            ]
            bad = [r.status for r in own if r.status != "ok"]
            if not values:
                word = {"oom": "does not fit", "diverged": "diverges"}.get(bad[0], "failed") if bad else "undecided"
                found[case] = Verdict(word, complete=not bad, evidence=", ".join(bad))
                continue
            mean = statistics.fmean(values)
            spread = statistics.stdev(values) * 2 if len(values) > 1 else 0.0
            found[case] = Verdict("slower", mean, mean - spread, mean + spread, trials=len(values), complete=not bad)
        values = {c: v.value for c, v in found.items() if v.value is not None and v.complete}
        if values:
            choose = min if self._settings.direction == "min" else max
            best = choose(values, key=lambda c: values[c])
            from dataclasses import replace

            found[best] = replace(found[best], verdict="winner")
        return found
