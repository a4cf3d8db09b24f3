"""A request to stop, as a file in the run directory; it names its attempt, so that it can never stop a later one.

{"attempt": 2, "reason": "stop_command", "by": "paceline stop, pid 4711", "time": …}
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.files import read_json, write_json

EXIT_CODES = {"ctrl_c": 130, "sigterm": 130, "stop_command": 0, "max_hours": 0, "halted": 5, "resize": 0}
"""Everything that can ask a run to stop, and the exit code that follows when it has. After `resize`, because a host came or leaves, the
same command begins another attempt."""


@dataclass(frozen=True)
class StopRequest:
    attempt: int
    reason: str
    by: str
    time: float


def write_stop_request(path: Path, attempt: int, reason: str, by: str) -> StopRequest:
    assert reason in EXIT_CODES
    request = StopRequest(attempt, reason, f"{by}, pid {os.getpid()}", time.time())
    write_json(path, asdict(request))
    return request


def read_stop_request(path: Path, attempt: int) -> StopRequest | None:
    """The request for this attempt; one for another attempt, or a damaged one, does not count."""
    try:
        request = StopRequest(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None
    return request if request.attempt == attempt and request.reason in EXIT_CODES else None
