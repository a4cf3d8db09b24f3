"""Something that one rank finds out, and all ranks go by.

    ask_first(ranks, lambda: {"checkpoint": …})

What rank 0 alone can see, such as its host's disks, must not be looked for by each: they would find different things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from paceline.engine.ranks import Ranks
from paceline.errors import PacelineError, error_from_record


def ask_first(ranks: Ranks, ask: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What rank 0 answers; what is wrong there is raised on every rank. Blocks."""
    message: list[dict[str, Any]] = [{}]
    if ranks.is_first:
        try:
            message[0] = {"answer": dict(ask())}
        except PacelineError as error:
            message[0] = {"error": error.to_record()}
    if ranks.has_group:
        dist.broadcast_object_list(message, src=0)
    if "error" in message[0]:
        raise error_from_record(message[0]["error"])
    answer: dict[str, Any] = message[0]["answer"]
    return answer
