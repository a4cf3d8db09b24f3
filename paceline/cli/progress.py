"""How far a preparation is, on stderr: a bar with rate and time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from paceline.recipes.progress import Progress, Report
from paceline.telemetry.amount import show_amount

_LINE_EVERY_S = 10.0


@contextlib.contextmanager
def showing_progress() -> Iterator[Report]:
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        pace = Pace()

        def report(progress: Progress) -> None:
            if pace.begin(progress):
                bar.reset(task)  # the time left follows from this phase alone
            bar.update(task, description=pace.words(progress), completed=progress.done, total=progress.total or None)

        yield report


class Pace:
    """How much of a phase is done, and how fast that went since the phase began."""

    def __init__(self) -> None:
        self._phase, self._began, self._amount = "", 0.0, 0

    def begin(self, progress: Progress) -> bool:
        """Whether it is another phase than before."""
        if progress.phase == self._phase:
            return False
        self._phase, self._began, self._amount = progress.phase, time.monotonic(), progress.amount
        return True

    def words(self, progress: Progress) -> str:
        """tokenizing 2,000 tokens, 500/s"""
        if not progress.amount:
            return progress.phase
        rate = (progress.amount - self._amount) / max(time.monotonic() - self._began, 1e-3)
        return f"{progress.phase} {progress.amount:,} {progress.unit}, {show_amount(rate)}/s"


class Lines:
    """For a log file."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY_S:
            self._last = now
            said = [f"{progress.done / progress.total:.0%}"] if progress.total else []
            said += [f"{progress.amount:,} {progress.unit}"] if progress.amount else []
            print(f"{progress.phase}: {', '.join(said)}", file=sys.stderr, flush=True)
