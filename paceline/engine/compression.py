"""Gradients that travel in a smaller type: cast, sum over the ranks, cast back.

Our own hook rather than torch's: theirs refuses bf16 off CUDA, and this one is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

COMPRESSED_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Hook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]
"""(state, torch.distributed.GradBucket) -> the averaged bucket, in the future"""


def build_compression(name: str, world_size: int) -> Hook:
    """A DDP communication hook that averages gradients in the named type."""
    dtype = COMPRESSED_TYPES[name]

    # Without annotations: DDP compares them with types, and here they are strings.
    def compress(state, bucket):  # type: ignore[no-untyped-def]
        buffer: torch.Tensor = bucket.buffer()
        # Divided before the sum: fp16 ends at 65,504.
        small = buffer.to(dtype).div_(world_size)
        work = dist.all_reduce(small, async_op=True)
        assert work is not None

        def decompress(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            return buffer.copy_(future.value()[0])

        averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(decompress)
        return averaged

    return compress
