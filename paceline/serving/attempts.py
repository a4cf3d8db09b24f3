"""Stages run so that each fails alone and is late alone: whatever becomes of one, its neighbours and the request go on.

    attempts = Attempts()
    for source, found, report in attempts.run_all("source", sources, lambda source: source.fetch(query)):
        …                                            # found is None where report.status is not "ok"

A stage with a limit runs in its own lane of threads, all of them at once; one without runs in the caller's thread meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from paceline.serving.lanes import Call, Lane
from paceline.serving.report import StageReport, Status
from paceline.serving.stages import SkippedError, Stage

S = TypeVar("S", bound=Stage)
T = TypeVar("T")
_Timed = tuple[T | None, BaseException | None, float]
"""what a stage gave, what it raised, and when it ended"""


class Attempts:
    """The lanes of one pipeline; for any number of callers at the same time."""

    def __init__(self, width: int = 8) -> None:
        self._width = width
        self._lanes: dict[int, Lane] = {}

    def add(self, stages: Sequence[Stage]) -> None:
        """Gives each stage that has a limit threads of its own."""
        for stage in stages:
            if stage.timeout_s is not None:
                self._lanes[id(stage)] = Lane(stage.name, self._width)

    def run_all(self, kind: str, stages: Sequence[S], work: Callable[[S], T]) -> list[tuple[S, T | None, StageReport]]:
        """In the order of `stages`. A stage that raises, or gives nothing within its limit, costs its own result only."""
        began = time.perf_counter()
        started = {id(stage): self._start(stage, work) for stage in stages if id(stage) in self._lanes}
        found = []
        for stage in stages:
            if id(stage) not in started:
                inline = time.perf_counter()
                found.append((stage, *_judge(kind, stage, _timed(stage, work), inline)))
            else:
                found.append((stage, *_judge(kind, stage, self._collect(stage, started[id(stage)], began), began)))
        return found

    def run(self, kind: str, stage: S, work: Callable[[S], T]) -> tuple[T | None, StageReport]:
        ((_, found, report),) = self.run_all(kind, (stage,), work)
        return found, report

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def _start(self, stage: S, work: Callable[[S], T]) -> Call[_Timed[T]] | BaseException:
        try:
            return self._lanes[id(stage)].start(lambda: _timed(stage, work))
        except Exception as error:
            return error

    def _collect(self, stage: Stage, call: Call[_Timed[T]] | BaseException, began: float) -> _Timed[T]:
        if isinstance(call, BaseException):
            return None, call, time.perf_counter()
        assert stage.timeout_s is not None
        try:
            return call.result(max(0.0, began + stage.timeout_s - time.perf_counter()))
        except TimeoutError as error:
            return None, error, time.perf_counter()


def _timed(stage: S, work: Callable[[S], T]) -> _Timed[T]:
    try:
        found = work(stage)
    except (Exception, SystemExit) as error:
        return None, error, time.perf_counter()
    return found, None, time.perf_counter()


def _judge(kind: str, stage: Stage, timed: _Timed[T], began: float) -> tuple[T | None, StageReport]:
    found, error, ended = timed
    status: Status = "ok"
    note = ""
    if isinstance(error, SkippedError):
        status, note = "skipped", str(error)
    elif isinstance(error, TimeoutError):
        limit = f"nothing within {stage.timeout_s * 1e3:,.0f} ms" if stage.timeout_s is not None else "nothing in time"
        status, note = "late", str(error) or limit
    elif error is not None:
        status, note = "failed", describe(error)
    return found, StageReport(kind, stage.name, status, (ended - began) * 1e3, note=note)


def describe(error: BaseException) -> str:
    """One line about an exception."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
