"""metrics.csv and validation.csv of a foreign loop; written by the scribe's thread, opened when there is something to write."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.telemetry.layout import RunLayout
from paceline.telemetry.sdk.stopwatch import Window
from paceline.telemetry.tables import METRICS_COLUMNS, NOT_METRICS, VALIDATION_COLUMNS, Table


class Rows:
    """The tables of one attempt. The first evaluation ever decides which metrics validation.csv has columns for."""

    def __init__(self, layout: RunLayout, attempt: int, say: Callable[[str, str], None]) -> None:
        self._layout = layout
        self._attempt = attempt
        self._say = say
        self._metrics: Table | None = None
        self._validation: Table | None = None

    def write_window(self, row: Mapping[str, Any], window: Window, counted: Mapping[str, float]) -> None:
        """One row of metrics.csv; `counted` are totals over the window's timed steps, by the name of their rate."""
        if self._metrics is None:
            self._metrics = Table(self._layout.metrics, METRICS_COLUMNS)
        wall_s = window.wall_s
        rates = {name: total / wall_s for name, total in counted.items()} if wall_s > 0 else {}
        self._metrics.write({"attempt": self._attempt, **row, **window.columns(), **rates})

    def write_validation(self, row: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """One row of validation.csv; a metric without a column stands in the event alone."""
        if self._validation is None:
            columns = self._found_columns() or (*VALIDATION_COLUMNS, *metrics, "time")
            self._validation = Table(self._layout.validation, columns)
        known = {name: value for name, value in metrics.items() if name in self._validation.columns}
        for name in metrics.keys() - known.keys():
            text = (
                f"validation.csv has no column for {name}: its first evaluation had none; the events have every value"
            )
            self._say(f"column {name}", text)
        self._validation.write({"attempt": self._attempt, **row, **known, "time": time.time()})

    def close(self) -> None:
        for table in (self._metrics, self._validation):
            if table is not None:
                table.close()

    def _found_columns(self) -> tuple[str, ...] | None:
        """The header that an earlier attempt chose."""
        try:
            with open(self._layout.validation, encoding="utf-8") as file:
                found = tuple(file.readline().rstrip("\n").split(","))
        except OSError:
            return None
        return found if found[: len(VALIDATION_COLUMNS)] == VALIDATION_COLUMNS else None


def metric_name(name: str) -> str:
    """A metric's name as everything here writes it, a plain identifier: val/ndcg@10 is val_ndcg_10."""
    word = re.sub(r"\W+", "_", name).strip("_") or "metric"
    word = f"_{word}" if word[0].isdecimal() else word
    return f"{word}_" if word in NOT_METRICS else word
