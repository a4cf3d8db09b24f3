"""NVTX ranges around the stages of sparse attention, for Nsight Systems, or nothing at all.

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
    return torch.cuda.nvtx.range(f"nsa {stage}")
