"""A sweep's cases beside each other, in lanes: their ranking with intervals, their step times, their windows.

ranking_chart(facts)    -> dot and whisker per case, the baseline a line, what counts as the same a band
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from paceline.reports.amounts import counted, figure
from paceline.reports.lanes import Dot, Lane, Lanes, Line, Span
from paceline.reports.sweep_facts import WITHOUT_NUMBER, CaseFacts, SweepFacts
from paceline.telemetry.numbers import is_finite

MOST_LANES = 60
"""the rest is in the tables"""
COLOURS = {"winner": 2, "leads": 2, "tied": 2, "slower": 4, "undecided": 0}
_BAD = 5


def colour_of(case: CaseFacts) -> int:
    return COLOURS.get(case.verdict, _BAD)


def shown_cases(facts: SweepFacts) -> list[CaseFacts]:
    """The first of the ranking, and the baseline wherever it is."""
    cases = list(facts.cases[:MOST_LANES])
    if facts.baseline is not None and facts.baseline not in cases:
        cases[-1] = facts.baseline
    return cases


def label_of(facts: SweepFacts, case: CaseFacts) -> str:
    """With its place in the ranking, by which a name that was cut is found in the table."""
    return f"{facts.cases.index(case) + 1} · {case.name}"


def ranking_chart(facts: SweepFacts) -> Lanes | None:
    lanes = [_ranked(facts, case) for case in shown_cases(facts)]
    if not any(lane.values for lane in lanes):
        return None
    baseline, leader = facts.baseline, facts.leader
    value = baseline.value("value") if baseline is not None else None
    lines = [Line(value, f"baseline: {figure(value)}")] if value is not None else []
    margin, best = facts.part("plan").get("margin"), leader.value("value") if leader is not None else None
    band, band_text = None, ""
    if is_finite(margin) and best is not None:
        whose = "the winner" if leader is facts.winner else "the first"
        band_text = f"within {_percent(margin)} of {whose}"
        band = (best, best * (1 + margin)) if facts.is_lower_better else (best * (1 - margin), best)
    verdicts = {case.verdict for case in shown_cases(facts)}
    legend = [
        ("point s2", leader.verdict if leader is not None else ""),
        ("ring s2", "tied with it") if "tied" in verdicts else None,
        ("point s4", "slower" if not facts.is_lower_better else "worse") if "slower" in verdicts else None,
        ("point s0", "undecided") if "undecided" in verdicts else None,
        (f"point s{_BAD}", "cannot win") if verdicts & {*WITHOUT_NUMBER} else None,
        ("whisker s4", f"interval at {_confidence(facts)}") if any(lane.spans for lane in lanes) else None,
    ]
    if leader is None:
        legend = legend[1:]
    better = "lower is better" if facts.is_lower_better else "higher is better"
    return Lanes(
        "ranking",
        f"{facts.unit}, {better}",
        lanes,
        lines,
        band,
        band_text,
        [entry for entry in legend if entry is not None],
    )


def _ranked(facts: SweepFacts, case: CaseFacts) -> Lane:
    value = case.value("value")
    is_baseline = case is facts.baseline
    words = [case.verdict, *(["incomplete"] if not case.is_complete else []), *(["baseline"] if is_baseline else [])]
    spans = [Span(*case.interval)] if case.interval is not None and value is not None else []
    dots = []
    if value is not None:
        around = f", {figure(case.interval[0])} to {figure(case.interval[1])}" if case.interval else ""
        said = f"{case.name}: {figure(value)} {facts.unit}{around}"
        dots = [Dot(value, said, "ring" if case.verdict == "tied" or not case.is_complete else "point")]
    return Lane(label_of(facts, case), spans, dots, colour_of(case), ", ".join(words))


def step_time_chart(facts: SweepFacts) -> Lanes | None:
    """Each trial's median and ninth decile, and the range from the least to the greatest of them."""
    lanes = []
    for case in shown_cases(facts):
        spans, dots = [], []
        for trial in facts.trials_of(case):
            p50, p90 = trial.value("step_ms_p50"), trial.value("step_ms_p90")
            name = f"trial {trial.number} of {case.name}"
            dots += [Dot(p90, f"{name}: p90 {figure(p90)} ms", "ring")] if p90 is not None else []
            dots += [Dot(p50, f"{name}: p50 {figure(p50)} ms")] if p50 is not None else []
        if len(dots) > 1:
            spans = [Span(min(dot.x for dot in dots), max(dot.x for dot in dots))]
        lanes.append(Lane(label_of(facts, case), spans, dots, colour_of(case)))
    if not any(lane.values for lane in lanes):
        return None
    legend = [("point s4", "p50 of a trial"), ("ring s4", "p90 of a trial")]
    return Lanes("step time", "ms per step", lanes, legend=legend)


def window_chart(facts: SweepFacts) -> Lanes | None:
    """How even the pace was: all windows of a case's trials that count."""
    lanes = []
    for case in shown_cases(facts):
        rates = sorted(rate for trial in facts.trials_of(case) if trial.counts for rate in trial.windows)
        spans, dots = [], []
        if rates:
            spans = [Span(rates[0], rates[-1]), Span(_quantile(rates, 0.25), _quantile(rates, 0.75), "bar")]
            middle = median(rates)
            said = f"{case.name}: median {figure(middle)} of {counted(len(rates), 'window')}, {figure(rates[0])} to {figure(rates[-1])}"
            dots = [Dot(middle, said, "tick")]
        lanes.append(Lane(label_of(facts, case), spans, dots, colour_of(case)))
    if not any(lane.values for lane in lanes):
        return None
    legend = [("tick s4", "median"), ("area s4", "half of the windows"), ("whisker s4", "all of them")]
    return Lanes("windows", f"{facts.pace} of single windows", lanes, legend=legend)


def _quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, between the two nearest."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def _confidence(facts: SweepFacts) -> str:
    level = facts.part("plan").get("confidence")
    return f"{_percent(level)} confidence" if is_finite(level) else "the sweep's confidence"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
