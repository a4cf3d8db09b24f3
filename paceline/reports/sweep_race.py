"""The race of a sweep: when each case ran, when it was decided and on what evidence, and what it all cost against the full grid.

decisions(facts)     -> [Decision(at=812.4, round=2, trial=14, case="…", was="undecided", verdict="slower", evidence="…")]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.reports.amounts import counted, duration, figure, text
from paceline.reports.lanes import Dot, Lane, Lanes, Line, Span
from paceline.reports.lettering import plain
from paceline.reports.page import Note, Part, Table
from paceline.reports.sweep_charts import colour_of, label_of, shown_cases
from paceline.reports.sweep_facts import SweepFacts, TrialFacts
from paceline.telemetry.numbers import is_finite

_MOST_OPEN = 40
"""a longer table of decisions is folded"""


@dataclass(frozen=True)
class Decision:
    """A verdict that became another one when a trial had ended."""

    at: float | None
    """device-seconds that the sweep had spent by then"""
    round: str
    trial: str
    case: str
    was: str
    verdict: str
    evidence: str


def decisions(facts: SweepFacts) -> list[Decision]:
    """In the order they were taken; a case may have several, because a lead may be lost again."""
    found = []
    for event in facts.history:
        at = event.get("device_s")
        decided = event.get("decided")
        for each in decided if isinstance(decided, list) else ():
            if isinstance(each, dict):
                words = [text(each.get(name)) for name in ("was", "verdict", "evidence")]
                place = (at if is_finite(at) else None, text(event.get("round")), text(event.get("trial")))
                found.append(Decision(*place, plain(text(each.get("case"))), *words))
    return found


def race_chart(facts: SweepFacts) -> Lanes | None:
    """Each case's trials over the device-seconds that the sweep had spent, and its last verdict where it was given."""
    trials = {trial.number: trial for trial in facts.trials}
    ends = [(event.get("device_s"), trials.get(event.get("trial", -1))) for event in facts.history]
    ran = [(end, trial) for end, trial in ends if is_finite(end) and trial is not None]
    spent = max((end for end, _ in ran), default=0.0)
    if not spent:
        return None
    last = {decision.case: decision for decision in decisions(facts)}
    lanes = []
    for case in shown_cases(facts):
        own = [(end - (trial.value("device_s") or 0.0), end, trial) for end, trial in ran if trial.case == case.name]
        spans = [Span(begin, end, "bar") for begin, end, _ in own]
        dots = [Dot((begin + end) / 2, _told(trial), "tick" if trial.counts else "lost") for begin, end, trial in own]
        decision = last.get(case.name)
        if decision is not None and decision.at is not None:
            said = f"{case.name}: {decision.verdict} after {figure(decision.at)} device-seconds"
            dots.append(Dot(decision.at, said, "ring"))
        lanes.append(Lane(label_of(facts, case), spans, dots, colour_of(case), case.verdict))
    grid = facts.part("costs").get("full_grid_device_s")
    lines = [Line(grid, f"the full grid: about {figure(grid)}")] if is_finite(grid) and grid > 0 else []
    legend = [("area s4", "trial"), ("ring s4", "its last verdict")]
    if any(not trial.counts for _, trial in ran):
        legend.append(("lost", "trial that has no number"))
    reach = max(spent, *(line.x for line in lines)) * 1.02 if lines else spent * 1.02
    title = "the race" if facts.part("plan").get("racing") is not False else "trials over time"
    return Lanes(title, "device-seconds spent by the sweep", lanes, lines, legend=legend, x_range=(0.0, reach))


def _told(trial: TrialFacts) -> str:
    units = trial.value("units_per_s")
    rate = trial.value("samples_per_s") if units is None else units
    pace = f", {figure(rate)} per second" if rate is not None else ""
    return f"trial {trial.number}, round {text(trial.record.get('round'))} of {trial.case}: {trial.status}{pace}"


def cost_chart(facts: SweepFacts) -> Lanes | None:
    """What each case cost, start-ups included."""
    lanes = []
    for case in shown_cases(facts):
        own = facts.trials_of(case)
        spent = sum(trial.value("device_s") or 0.0 for trial in own)
        starting = sum(trial.value("startup_s") or 0.0 for trial in own)
        count = counted(len(own), "trial")
        said = f"{case.name}: {figure(spent)} device-seconds in {count}, start-ups {figure(starting)} s"
        spans, dots = ([Span(0.0, spent, "bar")], [Dot(spent, said, "tick")]) if spent else ([], [])
        lanes.append(Lane(label_of(facts, case), spans, dots, colour_of(case), count))
    most = max((value for lane in lanes for value in lane.values), default=0.0)
    return Lanes("cost of each case", "device-seconds", lanes, x_range=(0.0, most * 1.04)) if most else None


def race_table(facts: SweepFacts) -> Iterator[Part]:
    """When each case was decided, and on what."""
    found = decisions(facts)
    if not found:
        yield Note("No case is decided.")
        return
    rows = [
        (figure(each.at) if each.at is not None else "", each.round, each.trial, each.case, each.was, each.verdict, each.evidence)
        for each in found
    ]  # fmt: skip
    columns = ("after device-s", "round", "trial", "case", "was", "became", "evidence")
    is_long = len(rows) > _MOST_OPEN
    yield Table(
        columns,
        rows,
        frozenset({"after device-s", "round", "trial"}),
        counted(len(rows), "decision") if is_long else "",
        is_folded=is_long,
        names=frozenset({"case"}),
    )


def costs(facts: SweepFacts) -> Iterator[Part]:
    """What was spent, and against what."""
    paid = [trial for trial in facts.trials if trial.value("device_s")]
    spent = sum(trial.value("device_s") or 0.0 for trial in paid)
    starting = sum(trial.value("startup_s") or 0.0 for trial in paid)
    if not paid:
        return
    words = f"{figure(spent)} device-seconds ({duration(spent)}) in {counted(len(paid), 'trial')}"
    unknown = len(facts.trials) - len(paid)
    words += f", and {unknown:,} whose cost is not known" if unknown else ""
    words += f"; start-ups took {figure(starting)} s" if starting else ""
    grid, repeats = (facts.part("costs").get(name) for name in ("full_grid_device_s", "full_grid_repeats"))
    if is_finite(grid) and grid > 0:
        of = f" of {counted(repeats, 'repeat')}" if isinstance(repeats, int) else ""
        words += f"; the full grid{of}: about {figure(grid)}, so {spent / grid * 100:.0f} % of it was spent"
    yield Note(f"{words}.")
