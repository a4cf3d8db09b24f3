"""What the tables of a running attempt say: looked at every few seconds, as far as they have grown.

curves = Curves(layout, attempt=1)
curves.judge()      -> findings that hold, such as a loss that has become flat; the same list until there is something new to read
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from paceline.diagnose.bounds import judge_bounds
from paceline.diagnose.divergence import judge_metrics
from paceline.diagnose.finding import Finding
from paceline.telemetry.follow import Follower
from paceline.telemetry.layout import RunLayout

_EVERY_S = 10.0
_ROWS = 1000
"""the newest ones; older ones say nothing about what is wrong now"""
_FIRST = 200
"""rows of the run, of whatever attempt: where its loss came from"""


class Curves:
    """The tables of one attempt."""

    def __init__(self, layout: RunLayout, attempt: int) -> None:
        self._attempt = attempt
        self._metrics = Follower(layout.metrics)
        self._events = Follower(layout.events)
        self._beginning: list[dict[str, Any]] = []
        self._rows: deque[dict[str, Any]] = deque(maxlen=_ROWS)
        self._observations: deque[dict[str, Any]] = deque(maxlen=_ROWS)
        self._found: list[Finding] = []
        self._judged = time.monotonic()

    def judge(self) -> list[Finding]:
        now = time.monotonic()
        if now - self._judged < _EVERY_S:
            return self._found
        self._judged = now
        written = self._metrics.rows()
        self._beginning += written[: max(0, _FIRST - len(self._beginning))]
        rows = [row for row in written if row.get("attempt") == self._attempt]
        events = [event for event in self._events.records() if event.get("attempt") == self._attempt]
        self._observations += [event for event in events if event.get("kind") == "observation"]
        self._rows += rows
        if rows:
            known = list(self._rows)
            judged = judge_metrics(known, list(self._observations), beginning=self._beginning)
            self._found = [*judged, *judge_bounds(known, {})]
        return self._found
