"""What a sweep would do, in lines: its matrix, what it costs at most, and how long that should take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.source import show
from paceline.launch.duration import show_duration
from paceline.sweep.finals import FINALS
from paceline.sweep.ledger import Row, read_rows
from paceline.sweep.opening import LEDGER
from paceline.sweep.outcome import Sweep
from paceline.sweep.power import LEAST_REPEATS

_GUESSED_START_S = 10.0
_GUESSED_STEP_S = 0.1


def describe_dry_run(sweep: Sweep) -> list[str]:
    """The lines of `--dry-run`; reads the ledger where there is one, and starts nothing."""
    cases = sweep.matrix.cases
    lines = [f"sweep directory {sweep.root}", f"{len(cases):,} cases" + _excluded(sweep)]
    lines += _matrix(sweep) if sweep.plan.config.search is None else _axes(sweep)
    trial_s, said = _trial_seconds(sweep)
    devices = statistics.fmean(max(1, case.placement.num_gpus) for case in cases)
    slots, steps = sweep.plan.config.slots, sweep.settings.warmup_steps + sweep.settings.steps
    amount = _amount(sweep)
    lines += [*amount.words, f"a trial: {steps:,} steps, {show_duration(trial_s)} ({said})"]
    cost = _span(*(f"{trials * trial_s * devices:,.0f}" for trials in amount.trials))
    time = _span(*(show_duration(trials * trial_s / slots) for trials in amount.trials))
    lines.append(f"cost: {cost} device-seconds; time: {time}")
    most_s = amount.most * sweep.plan.config.trial_timeout_s / slots
    lines.append(f"never more than {show_duration(most_s)} ({amount.most:,} trials of trial_timeout_s)")
    return lines


def _matrix(sweep: Sweep) -> list[str]:
    lines = []
    for case in sweep.matrix.cases:
        mark = "   baseline" if case.name == sweep.matrix.baseline else ""
        ranks = case.placement.world_size
        where = f"{case.placement.num_gpus} GPUs" if case.placement.num_gpus else "CPU"
        lines.append(f"  {case.name}   {ranks} rank{'' if ranks == 1 else 's'}, {where}{mark}")
    return lines


def _axes(sweep: Sweep) -> list[str]:
    """Of a search, which tries few of many cases: what they are made of."""
    axes = [f"  {name}: {', '.join(map(show, values))}" for name, values in sweep.matrix.axes.items()]
    return [*axes, f"  baseline: {sweep.matrix.baseline}"]


@dataclass(frozen=True)
class _Amount:
    """How much a sweep runs."""

    words: list[str]
    trials: tuple[float, float]
    """whole ones, or as many shorter ones as cost the same: with little noise, with much"""
    most: int


def _amount(sweep: Sweep) -> _Amount:
    settings, config = sweep.settings, sweep.plan.config
    num_cases, num_ahead, words, what = len(sweep.matrix.cases), 0, [], "the full grid"
    if config.search is not None:
        num_ahead = min(config.search_trials, num_cases)
        tried = f"search={config.search}: {num_ahead:,} of the {num_cases:,} cases are tried, one trial each"
        num_cases = min(config.finalists + 1, num_ahead)
        words.append(f"{tried}, the baseline first; the {num_cases - 1} best are then raced against the baseline")
        what = "all finalists in full"
    fewest = settings.repeats or LEAST_REPEATS
    most = settings.repeats or settings.max_rounds
    grid = (num_cases * fewest, num_cases * most)
    auto = f"repeats=auto: {_span(fewest, most)}, as the noise asks for"
    repeats = f"repeats={settings.repeats}" if settings.repeats else auto
    words.append(f"{what}: {_span(*grid)} trials of {num_cases} cases ({repeats})")
    low, high = map(float, grid)
    if settings.racing:
        # Every case is tried once, a short trial, whatever that is of a small grid.
        low, high = (max(settings.budget_share * num, num_cases / 2) for num in grid)
        # Where that is too little for the front-runners, they have more (finals.py).
        high = max(high, min(num_cases / 2 + FINALS, settings.most_share * grid[1]))
        said = _span(f"{low:,.0f}", f"{high:,.0f}")
        words.append(
            f"racing: about {said} of them; {settings.budget_share:.0%}, or up to {settings.most_share:.0%} where that is a trial or "
            "two of each case; less where it is soon decided"
        )
    return _Amount(words, (low + num_ahead, high + num_ahead), grid[1] + num_ahead)


def _span(low: object, high: object) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _excluded(sweep: Sweep) -> str:
    num = sweep.matrix.num_excluded
    return f" ({num} left out by exclude)" if num else ""


def _trial_seconds(sweep: Sweep) -> tuple[float, str]:
    steps = sweep.settings.warmup_steps + sweep.settings.steps
    rows = _rows(sweep)
    timed = [_scaled(row, steps) for row in rows if row.status in ("ok", "stopped") and row.record]
    if timed:
        return statistics.fmean(timed), f"mean of {len(timed)} earlier trials in the ledger, for as many steps"
    guess = _GUESSED_START_S + steps * _GUESSED_STEP_S
    return (
        guess,
        f"a guess, nothing was measured yet: {_GUESSED_START_S:g} s to start, {_GUESSED_STEP_S * 1000:g} ms a step",
    )


def _scaled(row: Row, steps: int) -> float:
    assert row.record is not None
    start, whole = float(row.record["startup_s"]), float(row.record["duration_s"])
    return start + (whole - start) * steps / max(1, row.steps + row.warmup_steps)


def _rows(sweep: Sweep) -> Sequence[Row]:
    path = sweep.root / LEDGER
    if not path.exists():
        return []
    return read_rows(path)
