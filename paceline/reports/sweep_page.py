"""The page about one sweep: which case won and why, the ranking with its intervals, what decided the race, and every trial.

page = build_sweep_page(read_sweep_facts(root), beside=root)
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import paceline
from paceline.config.source import show
from paceline.reports import sweep_ranks, sweep_tables
from paceline.reports.amounts import counted, duration, figure, moment, text
from paceline.reports.lettering import plain
from paceline.reports.page import Charts, Note, Page, Part, Section, Tone
from paceline.reports.sweep_charts import (
    MOST_LANES,
    ranking_chart,
    step_time_chart,
    window_chart,
)
from paceline.reports.sweep_facts import WITHOUT_NUMBER, SweepFacts
from paceline.reports.sweep_maps import fixed_case, heat_maps, loss_charts
from paceline.reports.sweep_race import cost_chart, costs, race_chart, race_table
from paceline.telemetry.numbers import is_finite

_TONES: dict[str, Tone] = {"finished": "good", "interrupted": "warning", "stopped": "warning", "failed": "bad"}


def build_sweep_page(facts: SweepFacts, beside: Path) -> Page:
    """`beside`: the directory that the page will lie in, for its links."""
    parts = {
        "Result": list(_result(facts)),
        "Ranking": list(_ranking(facts)),
        "Ranks": list(sweep_ranks.ranks(facts)) if facts.part("plan").get("rank_table") else [],
        "Heat maps": list(_heat_maps(facts)),
        "Losses": list(_losses(facts)),
        "Race" if facts.part("plan").get("racing") is not False else "Trials over time": list(_race(facts)),
        "Trials": [*sweep_tables.trials(facts, beside), *sweep_tables.last_lines(facts)],
        "Plan": list(sweep_tables.plan(facts)),
        "Machine and code": list(sweep_tables.machine(facts)),
    }
    state, tone = _state(facts)
    name = text(facts.record.get("name")) or facts.root.absolute().name
    recipe = text(facts.record.get("recipe"))
    footer = f"Written by Paceline {paceline.__version__} on {moment(facts.now)} from {facts.root.absolute()}."
    sections = [Section(title, inside) for title, inside in parts.items() if inside]
    return Page(
        f"{name} ({recipe} sweep)" if recipe else f"{name} (sweep)", state, tone, list(_facts(facts)), sections, footer
    )


def _state(facts: SweepFacts) -> tuple[str, Tone]:
    reason = text(facts.record.get("reason"))
    if facts.state == "running":
        if facts.is_owned is False:
            return "interrupted: no process drives it any more; what is here is what it had by then", "warning"
        return (
            f"still running: {_progress(facts)}"
            if facts.is_owned
            else f"running, as sweep.json says: {_progress(facts)}",
            "plain",
        )
    more = f": {reason}" if reason else f": {_progress(facts)}" if facts.state == "interrupted" else ""
    return f"{facts.state}{more}", _TONES.get(facts.state, "plain")


def _progress(facts: SweepFacts) -> str:
    ended = sum(trial.status not in ("running", "interrupted", "superseded") for trial in facts.trials)
    return f"{counted(ended, 'trial')} ended so far"


def _facts(facts: SweepFacts) -> Iterator[tuple[str, str]]:
    yield "cases", f"{len(facts.cases):,}"
    if facts.axes:
        yield "axes", ", ".join(f"{axis} ({len(values)})" for axis, values in facts.axes.items())
    statuses = Counter(trial.status for trial in facts.trials)
    yield "trials", ", ".join(f"{number:,} {status}" for status, number in statuses.most_common()) or "none yet"
    yield "objective", " ".join(filter(None, (text(facts.part("objective").get("name")), f"({facts.unit})")))
    if facts.record.get("baseline"):
        yield "baseline", plain(text(facts.record.get("baseline")))
    started, updated = facts.record.get("created"), facts.record.get("updated")
    if is_finite(started):
        yield "began", moment(started)
        if is_finite(updated):
            yield "took", duration(updated - started)
    yield "directory", str(facts.root.absolute())
    argv = facts.record.get("argv")
    if isinstance(argv, list) and argv:
        yield "command", shlex.join(map(text, argv))
    made_by = text(facts.record.get("paceline"))
    yield (
        "Paceline",
        f"{made_by} (this report: {paceline.__version__})"
        if made_by not in ("", paceline.__version__)
        else paceline.__version__,
    )


def _result(facts: SweepFacts) -> Iterator[Part]:
    yield Note(sentence_of(facts), "good" if facts.winner is not None and facts.state == "finished" else "plain")
    yield from _reasons(facts)
    notes = facts.record.get("notes")
    for note in notes if isinstance(notes, list) else ():
        yield Note(text(note), "warning")
    yield from costs(facts)
    best = facts.root / "best.yaml"
    if best.exists():
        yield Note(f"To train with it: paceline train {shlex.quote(str(best))}")
    for gap in facts.gaps:
        yield Note(f"{gap}: what would stand there is missing below", "warning")


def sentence_of(facts: SweepFacts) -> str:
    """The result as the sweep itself says it, the same in all its files."""
    return plain(text(facts.record.get("sentence"))) or "The sweep does not say what came of it."


def _reasons(facts: SweepFacts) -> Iterator[Note]:
    leader = facts.leader
    if leader is not None:
        ends = (
            f"between {figure(leader.interval[0])} and {figure(leader.interval[1])} {facts.unit}"
            if leader.interval
            else ""
        )
        why = "; ".join(filter(None, (text(leader.record.get("evidence")), ends)))
        yield from [Note(f"Why: {why}.")] if why else []
    for verdict in WITHOUT_NUMBER:
        names = [case.name for case in facts.cases if case.verdict == verdict]
        if names:
            more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
            yield Note(f"{verdict}: {'; '.join(names[:8])}{more}.", "bad")
    part = [case.name for case in facts.cases if not case.is_complete and case.verdict not in WITHOUT_NUMBER]
    if part:
        yield Note(f"Incomplete, a trial of theirs failed: {'; '.join(part)}.", "warning")


def _ranking(facts: SweepFacts) -> Iterator[Part]:
    if not facts.cases:
        yield Note("There is nothing to rank.")
        return
    charts = [
        chart for chart in (ranking_chart(facts), step_time_chart(facts), window_chart(facts)) if chart is not None
    ]
    if charts:
        yield Charts(charts)
    if len(facts.cases) > MOST_LANES:
        yield Note(f"Drawn are the first {MOST_LANES} and the baseline; all {len(facts.cases):,} are in the table.")
    yield from sweep_tables.ranking(facts)
    yield Note("The trial is the unit of evidence; windows show how even the pace was, and prove nothing.")


def _heat_maps(facts: SweepFacts) -> Iterator[Part]:
    maps = heat_maps(facts)
    if not maps:
        return
    yield Charts(maps)
    centre = fixed_case(facts)
    if len(facts.axes) > 2 and centre is not None:
        whose = "the winner's values" if centre is facts.winner else "the values of the first of the ranking"
        fixed = ", ".join(f"{axis}={show(centre.values.get(axis))}" for axis in facts.axes)
        yield Note(f"Axes that a map does not show are fixed at {whose}: {fixed}.")


def _losses(facts: SweepFacts) -> Iterator[Part]:
    charts = loss_charts(facts)
    if not charts:
        yield Note("No trial logged a loss.")
        return
    yield Charts(charts)
    tolerance = facts.part("plan").get("loss_tolerance")
    if is_finite(tolerance):
        yield Note(
            f"A case whose loss lies more than {tolerance * 100:.3g} % above the baseline's at the same samples cannot win."
        )


def _race(facts: SweepFacts) -> Iterator[Part]:
    charts = [chart for chart in (race_chart(facts), cost_chart(facts)) if chart is not None]
    if charts:
        yield Charts(charts)
    yield from race_table(facts)
