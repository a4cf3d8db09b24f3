"""What came of one request: what is shown, and what each stage did, how long it took, and why it failed where it did."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from paceline.serving.candidates import Candidates
from paceline.serving.query import Query

Status = Literal["ok", "skipped", "failed", "late"]
KINDS = ("query hydrator", "source", "candidate hydrator", "filter", "scorer", "selector", "side effect")
"""in the order in which they run"""


@dataclass(frozen=True)
class StageReport:
    """One stage in one request."""

    kind: str
    name: str
    status: Status
    ms: float
    """until it ended, or was given up"""
    count: int | None = None
    """candidates that a source brought, that a filter removed, that anything else looked at; None where there are none yet"""
    note: str = ""
    """why it failed, was late, or had nothing to do"""


@dataclass(frozen=True)
class Answer:
    """The items to show, best first, and the record of how they were found."""

    query: Query
    """as hydrated"""
    shown: Candidates
    reports: tuple[StageReport, ...]
    ms: float
    """from the request to the answer; side effects come after it"""
    effects: Effects = field(repr=False)

    def lost(self) -> list[StageReport]:
        """Stages that did not do their part."""
        return [report for report in self.reports if report.status in ("failed", "late")]

    def to_record(self, effects: Sequence[StageReport] = ()) -> dict[str, Any]:
        return {"ms": self.ms, "stages": [asdict(report) for report in (*self.reports, *effects)]}


class Effects:
    """The side effects of one request, which end after its answer was given."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._done = threading.Condition()
        self._reports: list[StageReport] = []

    def add(self, report: StageReport) -> None:
        with self._done:
            self._reports.append(report)
            self._done.notify_all()

    def wait(self, timeout_s: float | None = None) -> list[StageReport]:
        """The reports of those that have ended by then."""
        with self._done:
            self._done.wait_for(lambda: len(self._reports) == self._left, timeout_s)
            return list(self._reports)
