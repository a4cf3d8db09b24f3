"""Ranges around the stages of sparse attention, or nothing at all: NVTX for Nsight Systems, and names in a profile where one is taken.

with mark("window"):      # a range "nsa window"
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

Mark = Callable[[str], contextlib.AbstractContextManager[object]]


def mark_nothing(stage: str) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext()


def mark_stage(stage: str) -> contextlib.AbstractContextManager[object]:
    return _Marked(f"nsa {stage}")


class _Marked(contextlib.AbstractContextManager[object]):
    """One range, in both."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._in_profile = torch.profiler.record_function(name)

    def __enter__(self) -> None:
        self._in_profile.__enter__()  # type: ignore[no-untyped-call]
        if torch.cuda.is_available():
            torch.cuda.nvtx.range_push(self._name)  # type: ignore[no-untyped-call]

    def __exit__(self, *_: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
        self._in_profile.__exit__(None, None, None)
