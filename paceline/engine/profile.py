"""A few steps under torch's profiler: a trace for Perfetto or chrome://tracing, and a table of what ran longest.

The window of steps is the same on every rank, so that all of them close their rows of metrics.csv around it and wait for each other at
its end; only some write. Starting and stopping the profiler, and what it costs inside, is in nobody's throughput.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from paceline.engine.context import Context
from paceline.engine.marks import ProfileMarks
from paceline.files import storage_errors
from paceline.telemetry.tables import PROFILE_COLUMNS, Table

_MOST_ROWS = 500
"""of each kind; the rest are too short to matter"""


class StepProfile:
    """The profiled window of an attempt; steps are counted from 1."""

    def __init__(self, context: Context, first_step: int, total_steps: int, use_graph: bool) -> None:
        """`first_step` is the attempt's: what lies before it of the window has been trained already."""
        config = context.config.telemetry.profile
        self._context = context
        self._window = range(0)
        if config.start_step is not None:
            end = min(config.start_step + config.num_steps, total_steps + 1)
            self._window = range(max(config.start_step, first_step), end)
            self._announce(config.start_step)
        chosen = config.ranks == "all" or context.ranks.rank in config.ranks
        self._writers = [*range(context.ranks.world_size)] if config.ranks == "all" else list(config.ranks)
        self._is_mine = chosen and bool(self._window)
        self._use_graph = use_graph
        self._profiler: torch.profiler.profile | None = None
        self._began: int | None = None
        self.marks = ProfileMarks()

    @property
    def is_on(self) -> bool:
        """Whether the window is open, on every rank alike."""
        return self._began is not None

    def is_border(self, step: int) -> bool:
        """Whether the window begins or ends after this step."""
        return bool(self._window) and (step + 1 == self._window.start or step + 1 == self._window.stop)

    def begins_after(self, step: int) -> bool:
        return bool(self._window) and step + 1 == self._window.start

    def begin(self, step: int) -> None:
        """Opens the window with the step after `step`."""
        self._began = step + 1
        self._context.pulse.beat(step, "profile")
        if self._is_mine:
            self._profiler = self._build()
            self._profiler.start()
            self.marks.is_on = True

    def end(self, step: int) -> None:
        """Closes the window after `step`, writes, and waits for the ranks that are still writing."""
        assert self._began is not None
        began, last = time.perf_counter(), step
        self._context.pulse.beat(step, "profile")
        if self._profiler is not None:
            self.marks.is_on = False
            self._profiler.stop()
            self._write(self._profiler, last + 1 - self._began)
            self._profiler = None
        seconds = self._context.ranks.gather_floats([time.perf_counter() - began]).max()
        layout, attempt = self._context.layout, self._context.attempt
        paths = [path for rank in self._writers for path in self._paths(attempt, rank)]
        self._context.events.write(
            "profile",
            first_step=self._began,
            last_step=last,
            ranks=self._writers,
            files=[str(path.relative_to(layout.root)) for path in paths],
            seconds=round(float(seconds), 3),
        )
        self._began = None

    def _announce(self, requested: int) -> None:
        about, window = "telemetry.profile.start_step", self._window
        if window:
            reason = f"steps {window.start} to {window.stop - 1}; their times are left out of metrics.csv"
            self._context.events.choice(about, requested, window.start, reason)
        else:
            reason = "the window lies before the step at which this attempt begins, or behind the end"
            self._context.events.choice(about, requested, None, reason)

    def _paths(self, attempt: int, rank: int) -> list[Any]:
        layout = self._context.layout
        return [layout.profile_trace(attempt, rank), layout.profile_table(attempt, rank)]

    def _build(self) -> torch.profiler.profile:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._context.ranks.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            if self._use_graph:
                # As torch does it for its own CUDA graphs: what CUPTI tears down and sets up again between two graphs can crash.
                os.environ |= {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}
        return torch.profiler.profile(activities=activities, acc_events=True)

    def _write(self, profiler: torch.profiler.profile, num_steps: int) -> None:
        trace, table = self._paths(self._context.attempt, self._context.ranks.rank)
        with storage_errors(trace):
            trace.parent.mkdir(parents=True, exist_ok=True)
            profiler.add_metadata_json("paceline", f'{{"steps": {num_steps}, "rank": {self._context.ranks.rank}}}')
            profiler.export_chrome_trace(str(trace))
            rows = Table(table, PROFILE_COLUMNS)
            for row in summarize(profiler.key_averages()):
                rows.write(row)
            rows.close()


def summarize(averages: Any) -> list[dict[str, Any]]:
    """A row per kernel and per operator, what ran longest first; the time of an operator is without that of those it called."""
    rows = []
    for entry in averages:
        if entry.is_user_annotation or entry.key.startswith("ProfilerStep"):
            continue  # our own marks: they contain everything
        is_kernel = entry.device_type != torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]
        rows.append(
            {
                "kind": "kernel" if is_kernel else "operator",
                "name": entry.key,
                "calls": entry.count,
                "host_ms": None if is_kernel else entry.self_cpu_time_total / 1e3,
                "device_ms": entry.self_device_time_total / 1e3,
            }
        )
    result = []
    for kind, column in (("kernel", "device_ms"), ("operator", "host_ms")):
        mine = sorted((row for row in rows if row["kind"] == kind), key=lambda row: -row[column])
        total = sum(row[column] for row in mine) or 1.0
        result += [row | {"share": row[column] / total} for row in mine[:_MOST_ROWS]]
    return result
