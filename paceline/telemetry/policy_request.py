"""Wishes for another policy while a run goes on: one file per watcher, which it keeps locked for as long as its wish counts.

    wish = PolicyWish(layout.policy_requests, attempt=2, policy="halt", by="paceline watch")
    wish.withdraw()

    policy_requests/4711-1f2e3d4c.json   {"attempt": 2, "policy": "halt", "by": "paceline watch, pid 4711", "time": …}

Whoever supervises the attempt asks once a second; of several wishes the strictest counts, and without one the configured policy. The lock
goes with its process, however that ends, so that a watcher that was killed wishes for nothing any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

POLICIES = ("note", "restart", "halt")
"""the strictest last"""
_MOST_BYTES = 4096


class PolicyWish:
    """One watcher's, until it withdraws it, or ends."""

    def __init__(self, directory: Path, attempt: int, policy: str, by: str) -> None:
        """OSError where nothing may be written."""
        assert policy in POLICIES
        directory.mkdir(exist_ok=True)
        _remove_old(directory, attempt)
        self._path = directory / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            # Locked before there is anything to be read: what is whole counts at once.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = {"attempt": attempt, "policy": policy, "by": f"{by}, pid {os.getpid()}", "time": time.time()}
            os.write(self._descriptor, json.dumps(record).encode())
        except BaseException:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_policy_request(directory: Path, attempt: int) -> str | None:
    """The strictest policy that somebody wishes for now; what is meant for another attempt, is damaged, or whose watcher has gone
    does not count."""
    try:
        paths = list(directory.iterdir())
    except OSError:
        return None
    records = [record for record, is_held in map(_read, paths) if is_held and record.get("attempt") == attempt]
    wished = [str(record["policy"]) for record in records if record.get("policy") in POLICIES]
    return max(wished, key=POLICIES.index, default=None)


def _read(path: Path) -> tuple[dict[str, Any], bool]:
    """What is in a file, and whether its watcher holds it."""
    descriptor = -1
    record: Any = None
    try:
        # Only to read, without waiting for whatever may lie there: the watcher may be another account's.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        record = json.loads(os.read(descriptor, _MOST_BYTES))
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return (record if isinstance(record, dict) else {}), True
    except (OSError, ValueError, RecursionError):
        return {}, False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return (record if isinstance(record, dict) else {}), False


def _remove_old(directory: Path, attempt: int) -> None:
    """What watchers of earlier attempts left when they were killed."""
    for path in directory.iterdir():
        record, is_held = _read(path)
        if not is_held and isinstance(record.get("attempt"), int) and record["attempt"] < attempt:
            with contextlib.suppress(OSError):
                path.unlink()
