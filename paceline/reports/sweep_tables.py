"""What a sweep recorded, as tables: the ranking, every trial, the plan, the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from paceline.reports.amounts import counted, figure, moment, text
from paceline.reports.links import link_to
from paceline.reports.page import Link, Listing, Note, Part, Table
from paceline.reports.run_tables import flatten
from paceline.reports.sweep_facts import CaseFacts, SweepFacts, TrialFacts, directory_of
from paceline.telemetry.numbers import is_finite

_MOST_OPEN = 40
"""a longer table of trials is folded"""
_MOST_TAILS = 8
_NAMES = frozenset({"case", "run directory"})
_TRIAL_NUMBERS = {
    "pace": "units_per_s",
    "samples/s": "samples_per_s",
    "step p50 ms": "step_ms_p50",
    "step p90 ms": "step_ms_p90",
    "data ms": "data_ms",
    "rank spread ms": "rank_spread_ms",
    "memory GiB": "memory_gib",
    "metric": "metric",
    "steps": "counted_steps",
    "device-s": "device_s",
    "start-up s": "startup_s",
}


def ranking(facts: SweepFacts) -> Iterator[Part]:
    has_cost = any(trial.value("device_s") for trial in facts.trials)
    columns = ["rank", "case", "verdict", facts.unit, "low", "high", "against the baseline", "trials"]
    columns += ["step p50 ms", "memory GiB", *(["device-s"] if has_cost else []), "evidence"]
    rows = []
    for place, case in enumerate(facts.cases, 1):
        trials = facts.trials_of(case)
        ends = [figure(end) for end in case.interval] if case.interval is not None else ["", ""]
        name = f"{case.name} (baseline)" if case is facts.baseline else case.name
        row = [str(place), name, verdict_of(case), _figure(case.value("value")), *ends]
        row += [against_baseline(facts, case), _tally(trials)]
        row += [_figure(_mean(trials, "step_ms_p50")), _figure(_most(trials, "memory_gib"))]
        row += [_figure(sum(trial.value("device_s") or 0.0 for trial in trials))] if has_cost else []
        failures = case.record.get("failures")
        words = [text(case.record.get("evidence")), *map(text, failures if isinstance(failures, list) else ())]
        rows.append([*row, "; ".join(filter(None, words))])
    yield Table(columns, rows, frozenset(columns) - {"case", "verdict", "trials", "evidence"}, names=_NAMES)


def verdict_of(case: CaseFacts) -> str:
    return case.verdict if case.is_complete else f"{case.verdict}, incomplete"


def against_baseline(facts: SweepFacts, case: CaseFacts) -> str:
    value = case.value("value")
    base = facts.baseline.value("value") if facts.baseline is not None else None
    if value is None or not base or case is facts.baseline:
        return ""
    return f"{(value / base - 1) * 100:+.2f} %"


def _tally(trials: list[TrialFacts]) -> str:
    """`5 ok`, `2 ok, 1 failed`."""
    return ", ".join(f"{number} {status}" for status, number in Counter(t.status for t in trials).items()) or "none yet"


def _mean(trials: list[TrialFacts], name: str) -> float | None:
    values = [value for trial in trials if trial.counts and (value := trial.value(name)) is not None]
    return sum(values) / len(values) if values else None


def _most(trials: list[TrialFacts], name: str) -> float | None:
    return max((value for trial in trials if (value := trial.value(name)) is not None), default=None)


def _figure(value: float | None) -> str:
    return figure(value) if value is not None else ""


def trials(facts: SweepFacts, beside: Path) -> Iterator[Part]:
    if not facts.trials:
        yield Note("No trial has ended.")
        return
    shown = {
        name: key for name, key in _TRIAL_NUMBERS.items() if any(trial.value(key) is not None for trial in facts.trials)
    }
    # Where no unit is told, samples (or a script's steps) are what the pace counts.
    counts_pace = "pace" if "pace" in shown else "samples/s"
    headings = [facts.pace if name == counts_pace else name for name in shown]
    columns = ("trial", "case", "round", "status", *headings, "began", "reason", "run directory")
    rows = []
    for trial in facts.trials:
        row: list[str | Link] = [str(trial.number), trial.case, text(trial.record.get("round")), trial.status]
        row += [_figure(trial.value(key)) for key in shown.values()]
        started = trial.record.get("began")
        row += [moment(started) if is_finite(started) else "", text(trial.record.get("reason"))]
        place = directory_of(trial)
        rows.append([*row, link_to(facts.root / place, place, beside) if place else ""])
    numbers = frozenset({"trial", "round", *headings})
    is_long = len(rows) > _MOST_OPEN
    yield Table(columns, rows, numbers, counted(len(rows), "trial") if is_long else "", is_folded=is_long, names=_NAMES)


def last_lines(facts: SweepFacts) -> Iterator[Part]:
    """Of the trials that failed; the first few, because they mostly fail for the same reason."""
    for trial in [trial for trial in facts.trials if not trial.counts][:_MOST_TAILS]:
        tail = trial.record.get("tail")
        if isinstance(tail, list | tuple) and tail:
            yield Listing(
                f"the last lines of trial {trial.number}, {trial.case}: {trial.status}", "\n".join(map(text, tail))
            )


def plan(facts: SweepFacts) -> Iterator[Part]:
    rows = list(flatten(facts.part("plan")))
    if not rows:
        yield Note("The plan is not recorded.")
        return
    yield Table(("key", "value"), rows)


def machine(facts: SweepFacts) -> Iterator[Part]:
    rows = [*flatten(facts.part("hardware")), *flatten(facts.part("code"), "code.")]
    if rows:
        yield Table(("what", "value"), rows)
    more = list(flatten(facts.part("machine")))
    if more:
        yield Table(("what", "value"), more, caption=f"{counted(len(more), 'value')} about the machine", is_folded=True)
    if not rows and not more:
        yield Note("The machine is not recorded.")
