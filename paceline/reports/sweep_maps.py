"""A sweep's objective over two of its axes, and the losses of its leading cases at matched samples.

heat_maps(facts)     -> one per pair of axes, all other axes at the winner's values
loss_charts(facts)   -> the losses, and how far each lies above the baseline's
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from paceline.config.source import show
from paceline.reports.chart import Chart, Series
from paceline.reports.heat_map import Cell, HeatMap
from paceline.reports.sweep_facts import CaseFacts, SweepFacts
from paceline.telemetry.numbers import is_finite

MOST_MAPS = 6
_LEADING, _DIVERGING = 3, 1
"""cases whose losses are drawn beside the baseline's: as many as there are colours"""
Curve = list[tuple[float, float]]


def heat_maps(facts: SweepFacts) -> list[HeatMap]:
    """The pairs of the axes that matter most come first; cases of a list that are no grid give none."""
    axes = sorted(
        (axis for axis, values in facts.axes.items() if len(values) > 1), key=lambda axis: -_effect(facts, axis)
    )
    centre = fixed_case(facts)
    if centre is None:
        return []
    maps = [_heat_map(facts, centre, first, second) for first, second in combinations(axes, 2)]
    return [found for found in maps if len(found.cells) > 1][:MOST_MAPS]


def fixed_case(facts: SweepFacts) -> CaseFacts | None:
    """Whose values the axes that a map does not show are fixed at: the winner, or the first of the ranking."""
    return facts.winner or next(iter(facts.cases), None)


def _effect(facts: SweepFacts, axis: str) -> float:
    """How far the means over the values of an axis lie apart."""
    groups: dict[str, list[float]] = {}
    for case in facts.cases:
        value = case.value("value")
        if value is not None:
            groups.setdefault(show(case.values.get(axis)), []).append(value)
    means = [fmean(group) for group in groups.values()]
    return max(means, default=0.0) - min(means, default=0.0)


def _heat_map(facts: SweepFacts, centre: CaseFacts, first: str, second: str) -> HeatMap:
    # The longer axis runs down the page, where there is room for any number of values.
    down, across = (first, second) if len(facts.axes[first]) >= len(facts.axes[second]) else (second, first)
    columns, rows = facts.axes[across], facts.axes[down]
    cells = {}
    for case in facts.cases:
        others = [axis for axis in facts.axes if axis not in (down, across)]
        if any(not _is_same(case.values.get(axis), centre.values.get(axis)) for axis in others):
            continue
        place = (_index(columns, case.values.get(across)), _index(rows, case.values.get(down)))
        if min(place) >= 0:
            outline = "winner" if case is facts.winner else "baseline" if case is facts.baseline else ""
            value = case.value("value")
            cells[place] = Cell(value, "" if value is not None else case.verdict, outline)
    title = f"{down} and {across}"
    return HeatMap(
        title, facts.unit, across, [show(each) for each in columns], down, [show(each) for each in rows], cells
    )


def _is_same(one: Any, other: Any) -> bool:
    """As JSON has them: true is not 1."""
    return show(one) == show(other)


def _index(values: Sequence[Any], value: Any) -> int:
    return next((place for place, each in enumerate(values) if _is_same(each, value)), -1)


def loss_charts(facts: SweepFacts) -> list[Chart]:
    baseline = facts.baseline
    leading = [case for case in facts.cases if case is not baseline and case.verdict not in ("failed", "does not fit")]
    chosen = [case for case in leading if case.verdict != "diverges"][:_LEADING]
    chosen += [case for case in leading if case.verdict == "diverges"][:_DIVERGING]
    named = [(case, f"{case.name} ({case.verdict})") for case in chosen]
    if baseline is not None:
        named.insert(0, (baseline, f"{baseline.name} (baseline)"))
    curves = {name: curve for case, name in named if (curve := _losses(facts, case))}
    if not curves:
        return []
    series = [Series(name, [x for x, _ in curve], [y for _, y in curve]) for name, curve in curves.items()]
    charts = [Chart("loss", "loss, mean of the trials", series, x_label="samples", may_be_log=True)]
    base = curves.get(named[0][1], []) if baseline is not None else []
    known = [point for point in base if is_finite(point[1])]
    if not known or len(curves) < 2:
        return charts
    # The baseline is there, too, as a line at 0: so each case has the same colour in both charts.
    apart = [Series(name, *_difference(curve, known)) for name, curve in curves.items()]
    tolerance = facts.part("plan").get("loss_tolerance")
    if is_finite(tolerance):
        apart.append(Series("tolerance", [known[0][0], known[-1][0]], [tolerance * 100] * 2))
    unit = "% above the baseline's loss, at the same samples"
    return [*charts, Chart("loss against the baseline", unit, apart, x_label="samples")]


def _losses(facts: SweepFacts, case: CaseFacts) -> Curve:
    """The mean over its trials wherever they logged; one that is not a number makes the mean none."""
    found: dict[float, list[float]] = {}
    for trial in facts.trials_of(case):
        if trial.counts or trial.status == "diverged":
            for samples, loss in trial.losses:
                found.setdefault(samples, []).append(loss)
    return [(samples, fmean(found[samples])) for samples in sorted(found)]


def _difference(curve: Curve, base: Curve) -> tuple[list[float], list[float | None]]:
    """In percent of the baseline's, only where that is known: beyond its ends nothing is said."""
    places = [x for x, _ in base]
    xs: list[float] = []
    ys: list[float | None] = []
    for x, loss in curve:
        if not places[0] <= x <= places[-1]:
            continue
        right = bisect_left(places, x)
        left = right if places[right] == x else right - 1
        share = (x - places[left]) / (places[right] - places[left]) if right > left else 0.0
        expected = base[left][1] + share * (base[right][1] - base[left][1])
        xs.append(x)
        ys.append((loss / expected - 1) * 100 if expected else math.nan)
    return xs, ys
