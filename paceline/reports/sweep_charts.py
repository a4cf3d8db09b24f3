"""A sweep's cases beside each other: their ranking with intervals, their step times, their windows, and the race in lanes.

ranking_chart(facts)    -> dot and whisker per case, the baseline a line, what counts as the same a band
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from paceline.reports.amounts import counted, figure, is_finite, text
from paceline.reports.lanes import Dot, Lane, Lanes, Line, Span
from paceline.reports.lettering import plain
from paceline.reports.sweep_facts import WITHOUT_NUMBER, CaseFacts, SweepFacts, TrialFacts

MOST_LANES = 60
"""the rest is in the tables"""
COLOURS = {"winner": 2, "tied": 2, "slower": 4, "undecided": 0}
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
    baseline, winner = facts.baseline, facts.winner
    value = baseline.value("value") if baseline is not None else None
    lines = [Line(value, f"baseline: {figure(value)}")] if value is not None else []
    margin, best = facts.part("plan").get("margin"), winner.value("value") if winner is not None else None
    band, band_text = None, ""
    if is_finite(margin) and best is not None:
        band_text = f"within {_percent(margin)} of the winner"
        band = (best, best * (1 + margin)) if facts.is_lower_better else (best * (1 - margin), best)
    verdicts = {case.verdict for case in shown_cases(facts)}
    legend = [
        ("point s2", "winner"),
        ("ring s2", "tied with it") if "tied" in verdicts else None,
        ("point s4", "slower" if not facts.is_lower_better else "worse") if "slower" in verdicts else None,
        ("point s0", "undecided") if "undecided" in verdicts else None,
        (f"point s{_BAD}", "cannot win") if verdicts & {*WITHOUT_NUMBER} else None,
        ("whisker s4", f"interval at {_confidence(facts)}"),
    ]
    if winner is None:
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
    return Lanes("windows", "samples/s of single windows", lanes, legend=legend)


def race_chart(facts: SweepFacts) -> Lanes | None:
    """When each case ran and when it was decided, over the device-seconds that the sweep had spent."""
    ends = _ends(facts.trials)
    spent = ends[-1] if ends else 0.0
    if not spent:
        return None
    decided = {plain(text(event.get("case"))): event for event in facts.history}
    lanes = []
    for case in shown_cases(facts):
        own = [(end, trial) for end, trial in zip(ends, facts.trials, strict=True) if trial.case == case.name]
        spans = [Span(end - (trial.value("device_s") or 0.0), end, "bar") for end, trial in own]
        dots = [
            Dot(end - (trial.value("device_s") or 0.0) / 2, _told(trial), "lost" if not trial.counts else "tick")
            for end, trial in own
        ]
        event = decided.get(case.name)
        at = event.get("device_s") if event is not None else None
        if event is not None and is_finite(at):
            dots.append(Dot(at, f"{case.name}: {text(event.get('verdict'))} after {figure(at)} device-seconds", "ring"))
        lanes.append(Lane(label_of(facts, case), spans, dots, colour_of(case), case.verdict))
    grid = facts.part("costs").get("full_grid_device_s")
    lines = [Line(grid, f"the full grid: {figure(grid)}")] if is_finite(grid) and grid > 0 else []
    legend = [("area s4", "trial"), ("ring s4", "decided")]
    if any(not trial.counts for trial in facts.trials):
        legend.append(("lost", "trial that does not count"))
    reach = max(spent, *(line.x for line in lines)) * 1.02 if lines else spent * 1.02
    return Lanes("the race", "device-seconds spent by the sweep", lanes, lines, legend=legend, x_range=(0.0, reach))


def cost_chart(facts: SweepFacts) -> Lanes | None:
    """What each case cost, start-ups included."""
    lanes = []
    for case in shown_cases(facts):
        own = facts.trials_of(case)
        spent = sum(trial.value("device_s") or 0.0 for trial in own)
        starting = sum(trial.value("startup_s") or 0.0 for trial in own)
        said = f"{case.name}: {figure(spent)} device-seconds in {counted(len(own), 'trial')}, start-ups {figure(starting)} s"
        dots = [Dot(spent, said, "tick")] if spent else []
        aside = counted(len(own), "trial")
        lanes.append(
            Lane(label_of(facts, case), [Span(0.0, spent, "bar")] if spent else [], dots, colour_of(case), aside)
        )
    most = max((value for lane in lanes for value in lane.values), default=0.0)
    return Lanes("cost of each case", "device-seconds", lanes, x_range=(0.0, most * 1.04)) if most else None


def _ends(trials: Sequence[TrialFacts]) -> list[float]:
    """The device-seconds spent when each trial had ended."""
    spent, ends = 0.0, []
    for trial in trials:
        spent += trial.value("device_s") or 0.0
        ends.append(spent)
    return ends


def _told(trial: TrialFacts) -> str:
    rate = trial.value("samples_per_s")
    pace = f", {figure(rate)} samples/s" if rate is not None else ""
    return f"trial {trial.number}, round {text(trial.record.get('round'))} of {trial.case}: {trial.status}{pace}"


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
