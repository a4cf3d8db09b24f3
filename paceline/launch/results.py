"""The table at the end of a run: its last loss, its pace, its validation and test metrics, its checkpoints, how long it took.

Every number names its evidence: the file it stands in, the step or windows, the count. What earlier attempts did counts as far as a
later one went on from it.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from paceline.errors import UsageError
from paceline.telemetry.amount import show_amount
from paceline.telemetry.checkpoints import read_checkpoint
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row, Run, latest_attempt, plan_starts


def results_table(run: Run, state: str) -> Table:
    """What the run came to, as rows of (what, value, evidence); run.json may be behind on its state on a full disk."""
    count = len(run.run.attempts)
    attempts = f" ({count} attempts)" if count > 1 else ""
    table = Table(title=f"{run.run.recipe}: {state}{attempts}", title_justify="left")
    table.add_column("result")
    table.add_column("value", justify="right")
    table.add_column("from", style="dim")
    for row in result_rows(run):
        table.add_row(*row)
    return table


def result_rows(run: Run) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    if run.metrics:
        last = run.metrics[-1]
        rows.append(("loss", _shown(last.get("loss")), f"{run.layout.metrics.name}, step {last['step']:,}"))
        # The pace of one attempt: another one may have had more ranks.
        rows.append(
            _pace_row([row for row in run.metrics if row["attempt"] == last["attempt"]], run.layout.metrics.name)
        )
    rows += _evaluation_rows(run)
    rows += _checkpoint_rows(run)
    attempt = run.run.attempts[-1] if run.run.attempts else None
    if attempt is not None and attempt.ended is not None and rows:
        ranks = f"{attempt.world_size} rank{'' if attempt.world_size == 1 else 's'}"
        which = f", attempt {attempt.attempt}" if len(run.run.attempts) > 1 else ""
        evidence = f"{run.layout.run.name}, {ranks}, start-up included{which}"
        rows.append(("duration", f"{attempt.ended - attempt.started:,.1f} s", evidence))
    return rows


def _pace_row(metrics: list[Row], file: str) -> tuple[str, str, str]:
    # The first window holds the warm-up of allocators and kernels.
    windows = [row["samples_per_s"] for row in (metrics[1:] or metrics) if is_finite(row.get("samples_per_s"))]
    if not windows:
        return ("samples/s", "?", f"{file}, no window with a rate")
    spread = f"{show_amount(min(windows))} to {show_amount(max(windows))}"
    count = f"{len(windows):,} window{'' if len(windows) == 1 else 's'}"
    return ("samples/s", show_amount(statistics.median(windows)), f"{file}, median of {count}, {spread}")


def _evaluation_rows(run: Run) -> list[tuple[str, str, str]]:
    plans = run.events_of("plan")
    evaluations = [e for e in run.events_of("evaluation") if _has_metrics(e)]
    evaluations = latest_attempt(evaluations, plan_starts(run.events), "step", "split")
    if not evaluations:
        return []
    deciding = evaluations[0]["split"]
    rows = []
    decided = [e for e in evaluations if e["split"] == deciding]
    best = _best(decided, plans[-1].get("objective") if plans else None)
    if best is not None and best is not decided[-1]:
        rows += _metric_rows(f"best {deciding}", best, run)
    for split in dict.fromkeys(e["split"] for e in evaluations):
        rows += _metric_rows(split, [e for e in evaluations if e["split"] == split][-1], run)
    baselines = {(str(e.get("name", "baseline")), e["split"]): e for e in run.events_of("baseline") if _has_metrics(e)}
    for (model, split), event in baselines.items():
        label, count = f"{model} {split}", event.get("num_samples")
        evidence = f"{count:,} samples" if isinstance(count, int) else run.layout.events.name
        rows += [(f"{label} {name}", _shown(value), evidence) for name, value in event["metrics"].items()]
    return rows


def _checkpoint_rows(run: Run) -> list[tuple[str, str, str]]:
    rows = []
    for word in ("best", "final"):
        link = run.layout.checkpoints / word
        with contextlib.suppress(UsageError):  # there is none
            rows.append((f"{word} checkpoint", f"step {read_checkpoint(link).step:,}", f"checkpoints/{word}"))
    return rows


def _best(evaluations: list[Row], objective: Mapping[str, Any] | None) -> Row | None:
    if not isinstance(objective, Mapping) or not {"metric", "direction"} <= set(objective):
        return None
    scored = [e for e in evaluations if is_finite(e["metrics"].get(objective["metric"]))]
    choose = max if objective["direction"] == "max" else min
    return choose(scored, key=lambda e: e["metrics"][objective["metric"]], default=None)


def _metric_rows(label: str, evaluation: Row, run: Run) -> list[tuple[str, str, str]]:
    where = f"{run.layout.validation.name}, step {evaluation['step']:,}"
    if isinstance(evaluation.get("num_samples"), int):
        where += f", {evaluation['num_samples']:,} samples"
    place = (evaluation["step"], evaluation["split"])
    logged = next((row for row in reversed(run.validation) if (row["step"], row.get("split")) == place), {})
    # An event has null for what is not finite; the table has the word.
    return [
        (f"{label} {name}", _shown(logged.get(name) if value is None else value), where)
        for name, value in evaluation["metrics"].items()
    ]


def _has_metrics(event: Row) -> bool:
    return isinstance(event.get("metrics"), dict) and bool(event["metrics"]) and isinstance(event.get("split"), str)


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "?" if value is None else str(value)
