"""Who asks this rank to stop: a signal, a request in the run directory, the time limit. Asking is local; stopping is agreed (outcome.py)."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

from paceline.telemetry.layout import RunLayout
from paceline.telemetry.stop_request import EXIT_CODES, read_stop_request

STOP_REASONS = tuple(EXIT_CODES)
"""Every reason a rank can vote for; the position is its place in the vote."""

_POLL_S = 0.1


class StopWatch:
    """Collects what asks this rank to stop; `reason` is None until something does."""

    def __init__(self, layout: RunLayout, attempt: int, max_hours: float | None, spent_s: float = 0.0) -> None:
        self.reason: str | None = None
        self._layout = layout
        self._attempt = attempt
        self._deadline = time.monotonic() + max_hours * 3600 - spent_s if max_hours is not None else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop-watch", daemon=True)

    def start(self) -> None:
        """Takes over SIGINT and SIGTERM and begins to look for requests."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.reason == "ctrl_c":
            os._exit(130)
        # The first reason stands: it decides the exit code.
        self.reason = self.reason or ("ctrl_c" if number == signal.SIGINT else "sigterm")

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self.reason = self.reason or "max_hours"
            request = read_stop_request(self._layout.stop_request, self._attempt)
            if request is not None:
                self.reason = self.reason or request.reason
