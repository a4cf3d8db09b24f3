"""Everything a report about a sweep is made of, read from its sweep.json at one moment. The page is made from this alone.

    facts = read_sweep_facts(Path("sweeps/buckets"), is_owned=False)

A field that is missing or of another type is unknown here, and `gaps` names it; a sweep that was interrupted is whole as far as it goes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.reports.amounts import text
from paceline.reports.lettering import plain
from paceline.reports.records import objects_in, read_versioned
from paceline.telemetry.numbers import is_finite

SWEEP_FILE = "sweep.json"
SCHEMA = 1
"""the newest sweep.json that is understood here"""
COUNTED = ("ok", "stopped")
"""statuses of trials that have numbers; a stopped one was ended early by the race"""
WITHOUT_NUMBER = ("does not fit", "diverges", "failed")
"""verdicts of cases that cannot win, whatever their pace"""


@dataclass(frozen=True)
class TrialFacts:
    """One execution of a case."""

    number: int
    case: str
    status: str
    record: Mapping[str, Any]
    windows: Sequence[float] = ()
    losses: Sequence[tuple[float, float]] = ()
    """(samples, loss)"""

    @property
    def counts(self) -> bool:
        """Whether its numbers are evidence: it ended as it should, with the hardware and code that are compared."""
        return self.status in COUNTED and self.record.get("is_counted") is not False

    def value(self, name: str) -> float | None:
        found = self.record.get(name)
        return found if is_finite(found) else None


@dataclass(frozen=True)
class CaseFacts:
    """One point of the matrix, and what is known of it."""

    name: str
    values: Mapping[str, Any]
    """axis -> its value here"""
    verdict: str
    record: Mapping[str, Any]

    def value(self, name: str) -> float | None:
        found = self.record.get(name)
        return found if is_finite(found) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """None where it is not known; one without width is that of a single trial, which says nothing about the spread."""
        low, high = self.value("low"), self.value("high")
        return (low, high) if low is not None and high is not None and low < high else None

    @property
    def is_complete(self) -> bool:
        return self.record.get("is_complete") is not False


@dataclass(frozen=True)
class SweepFacts:
    """A sweep, as far as it has come."""

    root: Path
    record: Mapping[str, Any]
    cases: Sequence[CaseFacts]
    """in the order of their ranks"""
    trials: Sequence[TrialFacts]
    """in the order they began"""
    history: Sequence[Mapping[str, Any]]
    """one per result, in the order the race saw it"""
    axes: Mapping[str, Sequence[Any]]
    is_owned: bool | None = None
    """whether a process drives it now; None: that cannot be told"""
    now: float = 0.0
    gaps: Sequence[str] = field(default_factory=list)

    def part(self, name: str) -> Mapping[str, Any]:
        """An object of the record; empty where there is none."""
        found = self.record.get(name)
        return found if isinstance(found, Mapping) else {}

    @property
    def state(self) -> str:
        return text(self.record.get("state")) or "unknown"

    @property
    def unit(self) -> str:
        objective = self.part("objective")
        return text(objective.get("unit")) or text(objective.get("name")) or "samples/s"

    @property
    def pace(self) -> str:
        """What throughput is counted in, whatever the objective."""
        return f"{text(self.record.get('unit')) or 'samples'}/s"

    @property
    def is_lower_better(self) -> bool:
        return self.part("objective").get("direction") == "min"

    @property
    def winner(self) -> CaseFacts | None:
        return next((case for case in self.cases if case.verdict == "winner"), None)

    @property
    def leader(self) -> CaseFacts | None:
        """The winner, or who is ahead where that is not certain."""
        return next((case for case in self.cases if case.verdict in ("winner", "leads")), None)

    @property
    def baseline(self) -> CaseFacts | None:
        return next((case for case in self.cases if case.name == plain(text(self.record.get("baseline")))), None)

    def trials_of(self, case: CaseFacts) -> list[TrialFacts]:
        return [trial for trial in self.trials if trial.case == case.name]


def read_sweep_facts(root: Path, is_owned: bool | None = None) -> SweepFacts:
    """Refuses a directory whose sweep.json cannot be read or is of a newer version."""
    return build_sweep_facts(root, read_versioned(root / SWEEP_FILE, SCHEMA, "sweep"), is_owned)


def build_sweep_facts(root: Path, record: Mapping[str, Any], is_owned: bool | None = None) -> SweepFacts:
    gaps: list[str] = []
    cases = [_case(each) for each in objects_in(record, "cases", SWEEP_FILE, gaps)]
    trials = [_trial(number, each) for number, each in enumerate(objects_in(record, "trials", SWEEP_FILE, gaps), 1)]
    places = {case.name for case in cases}
    strangers = dict.fromkeys(trial.case for trial in trials if trial.case not in places)
    gaps += [f"{SWEEP_FILE} has a trial of {name}, and no such case" for name in strangers]
    lost = [place for trial in trials if (place := directory_of(trial)) and not (root / place).exists()]
    if lost:
        gaps.append(f"{lost[0]} is gone" + (f", and {len(lost) - 1:,} more" if lost[1:] else ""))
    axes = [axis for axis in objects_in(record, "axes", SWEEP_FILE, gaps) if isinstance(axis.get("values"), list)]
    return SweepFacts(
        root,
        record,
        sorted(cases, key=_place),
        trials,
        objects_in(record, "history", SWEEP_FILE, gaps),
        {text(axis.get("name")): axis["values"] for axis in axes},
        is_owned,
        time.time(),
        gaps,
    )


def directory_of(trial: TrialFacts) -> str:
    """Where its run directory lies, relative to the sweep's; nothing where that is not known, or is no place below it."""
    place = trial.record.get("directory")
    if not isinstance(place, str) or place.startswith("/") or ".." in place.split("/"):
        return ""
    return place


def _case(record: Mapping[str, Any]) -> CaseFacts:
    values = record.get("values")
    return CaseFacts(
        plain(text(record.get("name"))),
        values if isinstance(values, dict) else {},
        text(record.get("verdict")) or "undecided",
        record,
    )


def _place(case: CaseFacts) -> tuple[bool, float]:
    """By rank, those without one last; sorting keeps their order."""
    rank = case.value("rank")
    return (rank is None, rank or 0.0)


def _trial(number: int, record: Mapping[str, Any]) -> TrialFacts:
    windows, losses = record.get("windows"), record.get("losses")
    own = record.get("trial")
    return TrialFacts(
        own if isinstance(own, int) else number,
        plain(text(record.get("case"))),
        text(record.get("status")) or "unknown",
        record,
        [value for value in windows if is_finite(value)] if isinstance(windows, list | tuple) else [],
        [_loss(pair) for pair in losses if _is_pair(pair)] if isinstance(losses, list | tuple) else [],
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and is_finite(value[0])


def _loss(pair: Sequence[Any]) -> tuple[float, float]:
    """JSON has no number that is not finite: null stands for it."""
    return (pair[0], pair[1] if is_finite(pair[1]) else math.nan)
