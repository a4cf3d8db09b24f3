"""How attempts ended, as findings: what ranks said when they failed, and what a launcher saw of those that said nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.diagnose.finding import Finding, Witness
from paceline.telemetry.run_file import Attempt

_KINDS = {
    "StorageError": "disk_full",
    "OutOfMemoryError": "out_of_memory",
    "NonFiniteError": "not_finite",
    "DesyncError": "desync",
    "RankLostError": "dead_rank",
}
"""an error's name -> what it is; any other is a message"""
_SILENT = re.compile(
    r"rank (\d+) \(pid (\d+)\) (?:was killed by signal (\d+)|ended with exit code (\d+) without saying why)"
)
_NONFINITE = re.compile(r"step (\d+) .*?not finite on rank (\d+(?:, \d+)*)")
_DESYNC = re.compile(r"at step (\d+): rank (\d+) differs")


def judge_failures(attempt: Attempt | None, events: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Of the last attempt: the causes, and the victims only where nobody else said anything."""
    if attempt is None:
        return []
    failures = [event for event in events if event.get("kind") == "failure" and event.get("attempt") == attempt.attempt]
    primary = [event for event in failures if not event.get("secondary")]
    found = [_report_failure(event) for event in primary]
    silent = _SILENT.search(attempt.reason)
    if silent is not None:
        found.append(_report_silent(attempt, silent))
    if not found and failures:
        found = [_report_failure(event, severity="warning") for event in failures[:1]]
    return found


def _report_failure(event: Mapping[str, Any], severity: str = "critical") -> Finding:
    problems = event.get("problems") or [{}]
    what, where, do = (str(problems[0].get(name) or "") for name in ("what", "where", "do"))
    error = str(event.get("error"))
    rank, step = event.get("rank"), event.get("step")
    ranks: tuple[int, ...] = ()
    cause = {"OutOfMemoryError": "allocation", "LoaderError": "loader"}.get(error, error)
    if error == "NonFiniteError" and (told := _NONFINITE.search(where)) is not None:
        guilty = tuple(int(word) for word in told[2].split(", "))
        step, rank, ranks = int(told[1]), guilty[0] if len(guilty) == 1 else None, guilty if len(guilty) > 1 else ()
    elif error == "NonFiniteError":
        rank = None  # all ranks say it alike
    if error == "DesyncError":
        told = _DESYNC.search(what)
        step, rank = (int(told[1]), int(told[2])) if told is not None else (step, None)
    return Finding(
        _KINDS.get(error, "message"),
        f"{what} ({where})" if where else what or error,
        do or "read the traceback in the rank's log",
        severity=severity,
        cause=cause,
        rank=rank if isinstance(rank, int) else None,
        ranks=ranks,
        step=step if isinstance(step, int) else None,
        since=event.get("time") if isinstance(event.get("time"), float) else None,
        witnesses=(Witness("events", True, f"{event.get('source', 'a rank')} said: {error}"),),
    )


def _report_silent(attempt: Attempt, told: re.Match[str]) -> Finding:
    rank, pid, number, code = int(told[1]), int(told[2]), told[3], told[4]
    cause = f"exit_{code}"
    if number is not None:
        try:
            cause = signal.Signals(int(number)).name.lower()
        except ValueError:
            cause = f"signal_{number}"
    return Finding(
        "dead_rank",
        f"rank {rank} died without a word: {attempt.reason}",
        f"read the end of logs/rank_{rank:05d}.log; dmesg tells whether the kernel killed process {pid} for its memory",
        severity="critical",
        cause=cause,
        rank=rank,
        step=attempt.step,
        since=attempt.ended,
        witnesses=(Witness("process", True, cause),),
    )
