"""metrics.csv, validation.csv, and each rank's timing and profile: one fixed header, one row per logged window or evaluation, appended across attempts.

Floats are written so that they read back to the same float. A value that is unknown here is an empty cell.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import OccupiedError
from paceline.files import LineWriter

WINDOW_TIMES = (
    "step_ms",
    "step_ms_p50",
    "step_ms_p90",
    "step_ms_std",
    "data_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
)
"""The columns of a window's times; empty where a profiler or a compiler was at work in it."""

METRICS_COLUMNS = (
    "attempt",
    "step",
    "epoch",
    "samples",
    "loss",
    "lr",
    "grad_norm",
    "window_steps",
    *WINDOW_TIMES,
    "samples_per_s",
    "units_per_s",
    "mfu",
    "memory_gib",
    "gpu_util",
    "time",
)
VALIDATION_COLUMNS = ("attempt", "step", "epoch", "samples", "split", "num_samples")
"""What every evaluation row begins with; the recipe's metrics follow."""
NOT_METRICS = frozenset((*VALIDATION_COLUMNS, "time"))
"""the columns of an evaluation row that are no metric"""

TIMING_COLUMNS = ("attempt", "step", "window_steps", *WINDOW_TIMES, "wait_ms", "wait_steps", "time")
PROFILE_COLUMNS = ("kind", "name", "calls", "host_ms", "device_ms", "share")


class Table:
    """Appends rows to a CSV file under a header that never changes."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._lines = LineWriter(path)
        if self._lines.is_empty:
            self._lines.write(",".join(self.columns))
            return
        with open(path, encoding="utf-8", errors="replace") as file:
            found = tuple(file.readline().rstrip("\n").split(","))
        if found != self.columns:
            raise OccupiedError(
                f"{path.name} has other columns than this run writes",
                f"{path}: {', '.join(found)}",
                "start in a fresh directory with --out DIR",
            )

    def write(self, row: Mapping[str, Any]) -> None:
        unknown = set(row) - set(self.columns)
        assert not unknown, f"not in the header: {sorted(unknown)}"
        self._lines.write(",".join(_cell(row.get(name)) for name in self.columns))

    def close(self) -> None:
        self._lines.close()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = repr(value) if isinstance(value, float) else " ".join(str(value).splitlines())
    if any(mark in text for mark in ',"'):
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="").writerow([text])
        text = buffer.getvalue()
    return text


def read_table(path: Path) -> list[dict[str, Any]]:
    """All whole rows, numbers as numbers, empty cells as None; torn rows are passed over, a missing file is empty."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    header, *lines = text.split("\n")
    # What follows the last line's end is nothing, or torn.
    return parse_rows(_names(header), lines[:-1])


def find_damaged_lines(path: Path) -> list[int]:
    """The numbers of the lines that are no rows: torn, garbled, or without a whole number for their attempt or step."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        header, *lines = file.read().split("\n")
    names = _names(header)
    places = [names.index(name) for name in ("attempt", "step") if name in names]
    whole = [_is_row(line, len(names), places) for line in lines[:-1]]
    # Nothing follows the last line's end, unless what does is torn.
    whole += [not line for line in lines[-1:]] or [not header]
    first = 2 if lines else 1
    return [number for number, is_whole in enumerate(whole, first) if not is_whole]


def _is_row(line: str, num_cells: int, places: Sequence[int]) -> bool:
    if not line.rstrip("\r"):
        return True
    cells = _cells(line)
    return len(cells) == num_cells and all(type(_value(cells[place])) is int for place in places)


def _names(header: str) -> list[str]:
    return header.rstrip("\r").split(",")


def parse_rows(header: Sequence[str], lines: Iterable[str]) -> list[dict[str, Any]]:
    """Whole lines of a table under its header, as `read_table` gives them."""
    # Each line alone: the open quote of a torn one must not swallow the next.
    rows = (_cells(line) for line in lines)
    return [_row(header, row) for row in rows if len(row) == len(header)]


def _row(header: Sequence[str], cells: list[str]) -> dict[str, Any]:
    try:
        # Most cells are seen to be what they are: a failed conversion, or a call, costs more than the rest.
        return {
            name: float(cell) if "." in cell else int(cell) if cell.isdigit() else _value(cell)
            for name, cell in zip(header, cells, strict=True)
        }
    except ValueError:
        return {name: _value(cell) for name, cell in zip(header, cells, strict=True)}


def _cells(line: str) -> list[str]:
    # A reader per line takes as long as all the rest together; a line of ours has a quote only where a cell needs one.
    if line and '"' not in line and "\r" not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # an end of line inside it, or a cell beyond all bounds: garbled
        return []


def _value(cell: str) -> Any:
    if cell == "":
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
