"""From a script's lines to the tables of a run directory: a row when enough steps have gone by, and one per line with a metric of its own.

    lines = LineReader(layout, attempt=1, config=config)
    lines.read("iter 20 | loss 3.21 | 12.5 ms", now=time.time())      -> 20, the step it told

Throughput is over true wall time, between the arrival of one row's last step and the next one's; what a line says of step times is kept
beside it.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from typing import Any

from paceline.config.describe import value_at
from paceline.config.sections import RunConfig
from paceline.recipes.command.words import READABLE, own_metrics, samples_per_step
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS, Table

_COUNTS = ("step", "epoch", "samples")
_NOT_FINITE = re.compile(r"(?<![\w.])[+-]?(?:nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)


class LineReader:
    """Reads the lines of one attempt."""

    def __init__(self, layout: RunLayout, attempt: int, config: RunConfig) -> None:
        metrics: dict[str, str] = value_at(config, "command.metrics")
        self._patterns = {name: re.compile(pattern) for name, pattern in metrics.items()}
        self._attempt = attempt
        self._log_every = config.telemetry.log_every
        self._samples_per_step = samples_per_step(config)
        self._metrics = Table(layout.metrics, METRICS_COLUMNS) if metrics else None
        own = own_metrics(config)
        self._validation = Table(layout.validation, (*VALIDATION_COLUMNS, *own, "time")) if own else None
        self._own = frozenset(own)
        self.step = 0
        self.loss: float | None = None
        """the last one that was told"""
        self._values: dict[str, float] = {}
        """what the lines have told of the step that is under way"""
        self._step_times: list[float] = []
        self._arrived = 0.0
        """when the line of that step came"""
        self._last: tuple[int, float, float | None] | None = None
        """step, time and samples of the last row"""

    def read(self, line: str, now: float) -> int | None:
        """Takes one line; the step it told, if it told one."""
        found: dict[str, float] = {}
        for name, pattern in self._patterns.items():
            value = _read_number(pattern, line)
            if value is not None and (math.isfinite(value) or name not in _COUNTS):
                found[name] = value
        self.loss = found.get("loss", self.loss)
        step = found.pop("step", None)
        if step is not None and int(step) != self.step:
            self._close_step()
            self.step, self._arrived, self._values = int(step), now, {}
        if "step_ms" in found:
            self._step_times.append(found["step_ms"])
        self._values |= {name: value for name, value in found.items() if name not in self._own}
        own = {name: value for name, value in found.items() if name in self._own}
        if own and self._validation is not None:
            place = {"attempt": self._attempt, "step": self.step, "samples": self._samples(), "split": "validation"}
            self._validation.write(place | own | {"time": now})
        return None if step is None else int(step)

    def close(self) -> None:
        """Writes what the last lines told, whatever the distance to the row before."""
        self._close_step(is_last=True)
        for table in (self._metrics, self._validation):
            if table is not None:
                table.close()

    def _samples(self) -> int | None:
        told = self._values.get("samples")
        if told is not None:
            return int(told)
        return self.step * self._samples_per_step if self._samples_per_step is not None else self.step

    def _close_step(self, is_last: bool = False) -> None:
        """The step is over: another one has begun. Writes a row where enough of them have gone by."""
        last_step = self._last[0] if self._last is not None else 0
        is_new = self._metrics is not None and self.step > last_step
        # Rows end with multiples, as those of other runs do, so that one of them ends with the warm-up of a trial.
        is_due = self._last is None or self.step // self._log_every > last_step // self._log_every
        if not is_new or not (is_due or is_last):
            return
        assert self._metrics is not None
        samples = self._samples()
        row: dict[str, Any] = {name: value for name, value in self._values.items() if name in READABLE}
        for name in ("epoch", "samples"):
            if name in row:
                row[name] = int(row[name])
        row |= {"attempt": self._attempt, "step": self.step, "samples": samples, "time": self._arrived}
        row["window_steps"] = self.step - last_step
        row |= self._times(row)
        self._metrics.write(row)
        self._last, self._step_times = (self.step, self._arrived, samples), []

    def _times(self, row: dict[str, Any]) -> dict[str, float]:
        """Step times as the script tells them, else over wall time; the first row has no time to begin with."""
        times: dict[str, float] = {}
        if self._last is not None and self._arrived > self._last[1]:
            _, began, counted = self._last
            wall_s = self._arrived - began
            times["step_ms"] = wall_s / row["window_steps"] * 1000
            if row["samples"] is not None and counted is not None:
                times["samples_per_s"] = (row["samples"] - counted) / wall_s
            times["step_ms_p50"] = times["step_ms"]
        if self._step_times:
            told = sorted(self._step_times)
            times["step_ms_p50"] = statistics.median(told)
            times["step_ms_p90"] = told[min(len(told) - 1, int(0.9 * len(told)))]
            times.setdefault("step_ms", statistics.fmean(told))
        if "samples_per_s" in row:
            times["samples_per_s"] = row["samples_per_s"]
        return times


def _read_number(pattern: re.Pattern[str], line: str) -> float | None:
    """What the expression finds in the line; also `nan` and `inf`, where one that knows digits alone would find a number."""
    match = pattern.search(line)
    if match is not None and match[1] is not None:
        with contextlib.suppress(ValueError):
            return float(match[1].replace(",", ""))
        return None
    for word in _NOT_FINITE.finditer(line):
        match = pattern.search(f"{line[: word.start()]}1.0{line[word.end() :]}")
        if match is not None and match.start(1) == word.start():
            return float(word[0])
    return None
