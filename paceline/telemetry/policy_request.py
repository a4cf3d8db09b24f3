"""A wish for another policy while a run goes on, as a file in its directory; it names its attempt, so that it never outlives it.

{"attempt": 2, "policy": "halt", "by": "paceline watch, pid 4711", "time": …}

Whoever supervises the attempt reads it once a second; when it is taken away, the configured policy holds again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from paceline.files import read_json, write_json

POLICIES = ("note", "halt", "restart")


def write_policy_request(path: Path, attempt: int, policy: str, by: str) -> None:
    assert policy in POLICIES
    write_json(path, {"attempt": attempt, "policy": policy, "by": f"{by}, pid {os.getpid()}", "time": time.time()})


def read_policy_request(path: Path, attempt: int) -> str | None:
    """The policy that is wished for; one for another attempt, or a damaged one, does not count."""
    try:
        record = read_json(path)
        policy = record["policy"] if record["attempt"] == attempt else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return policy if policy in POLICIES else None
