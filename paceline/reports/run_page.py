"""The page about one run: how it went, what it reached and how fast, its curves, and everything it recorded about itself.

page = build_run_page(read_run_facts(root, result_rows, is_owned=False), window=50)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import paceline
from paceline.reports import run_tables
from paceline.reports.amounts import UNKNOWN, count, counted, duration, figure, moment, size, steps_between, text
from paceline.reports.curves import evaluation_charts, training_charts
from paceline.reports.page import Charts, Note, Page, Part, Section, Table, Tone
from paceline.reports.rank_phases import rank_phases
from paceline.reports.run_facts import RunFacts
from paceline.reports.throughput import Spread, measure_throughput
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.ownership import unannounced_end
from paceline.telemetry.reader import Row

_TONES: dict[str, Tone] = {"finished": "good", "stopped": "warning", "failed": "bad"}


def build_run_page(facts: RunFacts, window: int) -> Page:
    run = facts.run.run
    parts = {
        "Results": list(_results(facts)),
        f"Throughput of the last {counted(window, 'step')}": list(_throughput(facts, window)),
        "Curves": list(_curves(facts)),
        "Evaluations": list(_evaluations(facts)),
        "Attempts": list(run_tables.attempts(facts)),
        "Ranks": [*run_tables.ranks(facts), *rank_phases(facts)],
        "Warnings and events": list(run_tables.signs(facts)),
        "Choices": list(run_tables.choices(facts)),
        "Configuration": list(run_tables.settings(facts)),
        "Checkpoints": list(run_tables.checkpoints(facts)),
        "Environment": list(run_tables.environment(facts)),
    }
    state, tone = _state(facts)
    title = f"{run.name} ({run.recipe})" if run.name else run.recipe
    footer = (
        f"Written by Paceline {paceline.__version__} on {moment(facts.now)} from {facts.run.layout.root.absolute()}."
    )
    return Page(title, state, tone, list(_facts(facts)), [Section(*each) for each in parts.items()], footer)


def _state(facts: RunFacts) -> tuple[str, Tone]:
    """How it went, as far as is known."""
    run = facts.run.run
    last = run.attempts[-1] if run.attempts else None
    at = f" at step {last.step:,}" if last is not None and isinstance(last.step, int) else ""
    if run.state != "running":
        reason = f": {run.reason}" if run.reason else ""
        return f"{run.state}{at}{reason}", _TONES.get(run.state, "plain")
    if facts.is_owned is False:
        return f"no end is recorded: {unannounced_end(run)}", "bad"
    at = _place(facts)
    return f"still running{at}" if facts.is_owned else f"running, as run.json says{at}", "plain"


def _place(facts: RunFacts) -> str:
    """How far it is by whatever knows the most: a heartbeat may be seconds old, or the last of an earlier attempt."""
    newest = facts.run.run.attempts[-1].attempt if facts.run.run.attempts else None
    layout = facts.run.layout
    told = [("its heartbeats", facts.beats), (layout.metrics.name, facts.run.metrics)]
    told.append((layout.validation.name, facts.run.validation))
    known = [
        (row["step"], source)
        for source, rows in told
        for row in rows
        if isinstance(row.get("step"), int) and row.get("attempt") == newest
    ]
    if not known:
        return ""
    step, source = max(known, key=lambda pair: pair[0])
    return f", at step {step:,} by {source}"


def _facts(facts: RunFacts) -> Iterator[tuple[str, str]]:
    run, attempts = facts.run.run, facts.run.run.attempts
    yield "recipe", run.recipe
    yield "run", run.id
    yield "began", moment(run.created)
    spent = [a.ended - a.started for a in attempts if is_finite(a.ended) and is_finite(a.started)]
    if attempts and attempts[-1].ended is not None:
        yield "ended", moment(attempts[-1].ended)
    if spent:
        more = len(attempts) - len(spent)
        without = f", and {counted(more, 'attempt')} whose end is not recorded" if more else ""
        yield "took", f"{duration(sum(spent))} in {counted(len(spent), 'attempt')}{without}"
    sizes = dict.fromkeys(str(attempt.world_size) for attempt in attempts)
    yield "ranks", ", then ".join(sizes) or UNKNOWN
    steps, samples = facts.plan.get("total_steps"), facts.plan.get("total_samples")
    if isinstance(steps, int) and isinstance(samples, int):
        yield "planned", f"{counted(steps, 'step')}, {counted(samples, 'sample')}"
    yield "directory", str(facts.run.layout.root.absolute())
    if attempts and attempts[-1].argv:
        yield "command", shlex.join(map(str, attempts[-1].argv))
    if run.parent:
        yield "forked from", f"step {text(run.parent.get('step'))} of {text(run.parent.get('root'))}"
    if run.init_from:
        yield "began with the weights of", text(run.init_from.get("path"))
    other = f" (this report: {paceline.__version__})" if run.paceline != paceline.__version__ else ""
    yield "Paceline", f"{run.paceline}{other}"


def _results(facts: RunFacts) -> Iterator[Part]:
    for event in _failures(facts):
        problems = event.get("problems")
        for problem in problems if isinstance(problems, list) else ():
            yield Note(f"{text(event.get('error'))}: {run_tables.describe_problem(problem)}", "bad")
    for gap in facts.gaps:
        yield Note(f"{gap}: what would stand there is missing below", "warning")
    if facts.results:
        yield Table(("result", "value", "from"), facts.results, frozenset({"value"}))
    else:
        yield Note("There is no result: nothing was logged.", "warning")


def _failures(facts: RunFacts) -> list[Row]:
    """Why the last attempt failed; not those that failed only because others had gone."""
    if not facts.run.run.attempts or facts.run.run.state != "failed":
        return []
    last = facts.run.run.attempts[-1].attempt
    return [event for event in facts.run.events_of("failure", attempt=last) if not event.get("secondary")]


def _throughput(facts: RunFacts, window: int) -> Iterator[Part]:
    yield from _pace(facts, window)
    told = facts.run.events_of("tables")
    if told:
        last = told[-1]
        share = f"{last['share']:.1%}" if is_finite(last.get("share")) else UNKNOWN
        yield Note(
            f"A step touched {figure(last.get('rows'))} rows of the model's tables, {share} of the bytes of a rank's "
            f"gradients; {size(last.get('bytes'))} came to each rank from the others, where dense gradients of tables would have been "
            f"{size(last.get('dense_bytes'))} (means of {count(last.get('steps'))} steps of attempt {text(last.get('attempt'))})."
        )


def _pace(facts: RunFacts, window: int) -> Iterator[Part]:
    found = measure_throughput(facts.run.metrics, window)
    if found is None:
        yield Note("No window of steps with a rate is recorded.", "warning")
        return
    file = facts.run.layout.metrics.name
    steps, windows = counted(found.num_steps, "step"), counted(found.num_windows, "window")
    evidence = f"{file}, {steps_between(found.first_step, found.last_step)} of attempt {found.attempt}"
    rows = [("samples/s", *_spread(found.rate), f"{windows}, {steps}", "between windows, by their time", evidence)]
    if found.units is not None:
        name = f"{facts.plan.get('unit', 'units')}/s"
        rows.append((name, *_spread(found.units), f"{windows}, {steps}", "between windows, by their time", evidence))
    rows.append(("ms per step", *_spread(found.step_ms), steps, "between single steps", evidence))
    columns = ("quantity", "mean", "standard deviation", "count", "deviation", "from")
    yield Table(columns, rows, frozenset({"mean", "standard deviation"}))
    if found.num_steps > window:
        yield Note(f"The last {counted(window, 'step')} end inside a window: whole windows are counted.")
    elif found.num_steps < window:
        yield Note(f"There are no more than {counted(found.num_steps, 'step')} to count.")
    if found.excluded:
        yield Note(f"Left out: {'; '.join(found.excluded)}.")
    yield Note("The mean rate is all samples over all time. Evaluations and checks are not in it.")


def _spread(spread: Spread) -> tuple[str, str]:
    return figure(spread.mean), figure(spread.std) if spread.std is not None else "none (one value)"


def _curves(facts: RunFacts) -> Iterator[Part]:
    charts = training_charts(facts)
    if not charts:
        yield Note(
            f"{facts.run.layout.metrics.name} has no rows yet." if not facts.run.metrics else "No column has a value."
        )
        return
    yield Charts(charts)
    text = f"From {counted(len(facts.run.metrics), 'row')} of {facts.run.layout.metrics.name}."
    if any(series.thinned.means for chart in charts for series in chart.series):
        text += " Pale: the least and the greatest value in each column of pixels; strong: their mean."
    yield Note(text)


def _evaluations(facts: RunFacts) -> Iterator[Part]:
    charts = evaluation_charts(facts)
    if not charts:
        is_over = facts.run.run.state != "running" or facts.is_owned is False
        yield Note("No evaluation is recorded." if is_over else "No evaluation is recorded yet.")
        return
    yield Charts(charts)
    yield Note(f"From {counted(len(facts.run.validation), 'row')} of {facts.run.layout.validation.name}.")
