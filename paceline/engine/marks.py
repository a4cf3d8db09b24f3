"""Marks at the borders of steps, their phases, evaluations and checkpoints, for tools that look from outside: NVTX ranges, and names in a
profile.

step 12: [data][forward][backward][optimizer]    evaluate validation    checkpoint
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from paceline.engine.timing import StepTimer


class Marks:
    """Opens and closes named ranges, one inside the other."""

    def push(self, name: str) -> None:
        raise NotImplementedError

    def pop(self) -> None:
        raise NotImplementedError


class NvtxMarks(Marks):
    """Ranges that Nsight Systems shows beside the kernels."""

    def push(self, name: str) -> None:
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]

    def pop(self) -> None:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


class ProfileMarks(Marks):
    """Names in a profile, while one is taken."""

    def __init__(self) -> None:
        self.is_on = False
        self._open: list[torch.profiler.record_function] = []

    def push(self, name: str) -> None:
        if self.is_on:
            self._open.append(torch.profiler.record_function(name))
            self._open[-1].__enter__()  # type: ignore[no-untyped-call]

    def pop(self) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)


@contextlib.contextmanager
def marked(marks: Sequence[Marks], name: str) -> Iterator[None]:
    """What lies between two steps."""
    for each in marks:
        each.push(name)
    try:
        yield
    finally:
        for each in reversed(marks):
            each.pop()


class MarkedTimer:
    """A step's timer with marks at the same borders: what the step tells one, it tells the other."""

    def __init__(self, timer: StepTimer, marks: Sequence[Marks]) -> None:
        self._timer = timer
        self._marks = marks
        self._is_in_phase = False

    def begin_step(self, step: int) -> None:
        self._push(f"step {step}")
        self._timer.begin_step(step)

    def enter(self, phase: str) -> None:
        self._leave_phase()
        self._push(phase)
        self._is_in_phase = True
        self._timer.enter(phase)

    def end_step(self) -> None:
        self._timer.end_step()
        self._leave_phase()
        self._pop()

    def _leave_phase(self) -> None:
        if self._is_in_phase:
            self._pop()
            self._is_in_phase = False

    def _push(self, name: str) -> None:
        for marks in self._marks:
            marks.push(name)

    def _pop(self) -> None:
        for marks in reversed(self._marks):
            marks.pop()
