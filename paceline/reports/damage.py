"""What is missing or damaged among the files of a run, one sentence each: a file that is gone, empty, torn, or that ends too early.

find_damage(run, origins)   -> ["1 line of metrics.csv is damaged (line 7) and left out", "validation.csv lacks 2 evaluations …"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.changes import values_in
from paceline.files import find_damaged_records
from paceline.reports.amounts import counted
from paceline.telemetry.reader import Run, latest_attempt, plan_starts
from paceline.telemetry.run_file import SDK_RECIPE
from paceline.telemetry.tables import find_damaged_lines

_MOST_NUMBERS = 5


def find_damage(run: Run, origins: Mapping[str, Any]) -> list[str]:
    """Of the configuration, the tables and the events; `origins` says which keys the configuration must have."""
    layout = run.layout
    return [
        *_config(layout.config, origins),
        *_lines(layout.metrics, find_damaged_lines),
        *_cut_metrics(run),
        *_validation(run),
        *_lines(layout.events, find_damaged_records),
        *_cut_events(run),
    ]


def _config(path: Path, origins: Mapping[str, Any]) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        yield f"there is no {path.name}"
        return
    except UnicodeDecodeError:
        yield f"{path.name} is damaged (it is not UTF-8 text)"
        return
    values = values_in(text)
    if not text.strip():
        # A foreign loop may have no settings; then there are no origins either.
        yield from [f"{path.name} is empty"] if origins or not text else []
    elif not values:
        yield f"{path.name} is damaged"
    else:
        lost = [key for key in origins if key not in values and not any(name.startswith(f"{key}.") for name in values)]
        if lost:
            yield f"{path.name} is cut: it lacks {counted(len(lost), 'key')}, such as {lost[0]}"
        elif not text.endswith("\n"):
            yield f"{path.name} is cut in its last line"


def _lines(path: Path, find: Callable[[Path], list[int]]) -> Iterator[str]:
    if not path.exists():
        yield f"there is no {path.name}"
    elif path.stat().st_size == 0:
        yield f"{path.name} is empty"
    else:
        yield from _damaged(path.name, find(path))


def _damaged(name: str, numbers: Sequence[int]) -> Iterator[str]:
    if numbers:
        shown = ", ".join(map(str, numbers[:_MOST_NUMBERS])) + (", …" if len(numbers) > _MOST_NUMBERS else "")
        is_one = len(numbers) == 1
        which = f"line {shown}" if is_one else f"lines {shown}"
        yield f"{counted(len(numbers), 'line')} of {name} {'is' if is_one else 'are'} damaged ({which}) and left out"


def _cut_metrics(run: Run) -> Iterator[str]:
    """A finished training of ours has a row for its last step; a foreign loop may log when it likes."""
    last = run.run.attempts[-1] if run.run.attempts else None
    if last is None or run.run.state != "finished" or run.run.recipe == SDK_RECIPE or last.step is None:
        return
    if not run.metrics:
        is_told = not run.layout.metrics.exists() or run.layout.metrics.stat().st_size == 0
        # An attempt that found nothing left to do has no row.
        if not is_told and last.step > plan_starts(run.events).get(last.attempt, 0):
            yield f"{run.layout.metrics.name} has no rows that count, and run.json says step {last.step:,}"
    elif run.metrics[-1]["step"] < last.step:
        reached = run.metrics[-1]["step"]
        yield f"{run.layout.metrics.name} ends at step {reached:,}, and run.json says step {last.step:,}"


def _validation(run: Run) -> Iterator[str]:
    """Nothing is missing where no evaluation was ever told of."""
    path = run.layout.validation
    told = latest_attempt(run.events_of("evaluation"), plan_starts(run.events), "step", "split")
    if told or path.exists():
        yield from _lines(path, find_damaged_lines)
    known = {(row["step"], row.get("split")) for row in run.validation}
    lost = [event for event in told if (event["step"], event.get("split")) not in known]
    if lost and path.exists():
        evaluations, first = counted(len(lost), "evaluation"), lost[0]["step"]
        yield f"{path.name} lacks {evaluations} that {run.layout.events.name} tells of, the first of step {first:,}"


def _cut_events(run: Run) -> Iterator[str]:
    last = run.run.attempts[-1] if run.run.attempts else None
    if last is None or run.run.state != "finished" or not run.events:
        return
    if not run.events_of("end", attempt=last.attempt):
        yield f"{run.layout.events.name} is cut: the end of attempt {last.attempt} is not in it"
