"""What an exception in a worker means to the operator: a typed error, and whether this rank is the cause or a victim."""

from __future__ import annotations

import errno
import re
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.errors import Interrupted, PacelineError, RankLostError
from paceline.files import storage_error

_PEER_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Application timeout caused pair closure",
    "/gloo/",
    "Socket Timeout",
    "NCCL error",
    "NCCL communicator was aborted",
)
"""What gloo, NCCL and the store say when another rank has gone; the exception type alone does not tell (torch 2.13)."""


_NO_KERNEL_WORDS = ("No available kernel", "No viable backend for scaled_dot_product_attention")
"""What torch says where a shape that the recipe did not tell of meets backends that were ruled out."""


def explain_exception(error: BaseException, root: Path, rank: int) -> tuple[PacelineError, bool]:
    """(typed error, whether it is only the echo of another rank's failure)."""
    if isinstance(error, PacelineError):
        return error, False
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted before the first step"), False
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
        return storage_error(error, root), False
    if isinstance(error, torch.OutOfMemoryError):
        return PacelineError(
            "the GPU ran out of memory",
            f"rank {rank}: {_first_line(error)}",
            "set a smaller train.micro_batch: the global batch stays the same",
        ), False
    if type(error) is RuntimeError and any(words in str(error) for words in _NO_KERNEL_WORDS):
        return PacelineError(
            "SDPA has no backend left for an attention of this run",
            f"rank {rank}: {_first_line(error)}; torch's reasons are in the rank's log",
            "set attention.impl=sdpa, or exclude less in attention.exclude",
        ), False
    if isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and any(word in str(error) for word in _PEER_WORDS)
    ):
        return RankLostError(
            "a collective failed because another rank has gone or is stuck",
            f"rank {rank}: {_first_line(error)}",
            "look at the other ranks' logs first",
        ), True
    frames = traceback.extract_tb(error.__traceback__)
    where = f"rank {rank}, {frames[-1].filename}:{frames[-1].lineno}" if frames else f"rank {rank}"
    return PacelineError(
        f"{type(error).__name__}: {_first_line(error)}", where, "run again with --debug for the traceback"
    ), False


def _first_line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    # gloo begins with the path of its own source file, and ends with advice of its own.
    return re.sub(r"^\[\S*?\w+\.cc:\d+\]\s*", "", text).partition(". This is typically caused")[0][:300]
