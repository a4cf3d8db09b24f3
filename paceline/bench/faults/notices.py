"""What was noticed of a fault, and when: findings and incidents of the run directory, and what `paceline train` itself ended with.

read_notices(Path("cells/sigstop-001/run"), …)   -> [Notice("stopped", "sigstop", rank=1, time=…, by="incident", …)]
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.files import read_json, read_records
from paceline.telemetry.layout import RunLayout

_LOST = re.compile(r"rank (\d+)\b.*(killed by signal|ended|died|exit)")
_BAD_RANK = re.compile(r"not finite on rank (\d+)")


@dataclass(frozen=True)
class Notice:
    """One thing that was said about the run."""

    kind: str
    cause: str
    rank: int | None
    time: float
    severity: str
    by: str
    """incident, finding, failure (a rank's own words), verdict (the launcher's)"""
    what: str = ""
    phase: str = ""
    step: int | None = None
    stacks: int = 0
    """of how many ranks there is a stack in the incident"""
    missing: tuple[tuple[int, str], ...] = ()
    """ranks of which there is none, and why"""
    stacks_s: float | None = None
    """from the notice to the last stack"""


def read_notices(root: Path, spare: Path, console: str, ended: float) -> list[Notice]:
    """In the order of their times; `spare` is where incidents go that found no room in the run."""
    layout = RunLayout(root)
    notices = []
    for path in [*layout.incidents.glob("*/report.json"), *spare.rglob("report.json")]:
        with contextlib.suppress(OSError, ValueError, KeyError):  # torn, on a full disk
            notices += _from_incident(path)
    events = read_records(layout.events) if layout.events.exists() else []
    for event in events:
        finding = event.get("finding")
        if event.get("kind") == "finding" and isinstance(finding, dict):
            notices.append(_from_finding(finding, float(event["time"]), "finding"))
        elif event.get("kind") == "failure" and not event.get("secondary"):
            notices += _from_failure(event)
    if not any(notice.by in ("incident", "failure") for notice in notices):
        notices += _from_console(console, ended)
    return sorted(notices, key=lambda notice: notice.time)


def _from_incident(path: Path) -> list[Notice]:
    """As it was noticed first, and, if it came back, as it was noticed last: what it says, and its stacks, are of that time."""
    report = read_json(path)
    missing = {int(rank): str(why) for rank, why in ((report.get("stacks") or {}).get("missing") or {}).items()}
    beyond = {f"rank_{rank:05d}.txt" for rank in missing}  # their files say why there is none
    files = (path.parent / "stacks").glob("rank_*.txt")
    stacks = [file for file in files if file.name not in beyond and file.stat().st_size]
    last = max((file.stat().st_mtime for file in stacks), default=None)
    times = [float(each) for each in (report["noticed"], report.get("returned")) if each is not None]
    *before, latest = (_from_finding(report["finding"], each, "incident") for each in times)
    stacks_s = round(last - latest.time, 3) if last is not None else None
    return [*before, replace(latest, stacks=len(stacks), missing=tuple(sorted(missing.items())), stacks_s=stacks_s)]


def _from_finding(finding: Mapping[str, Any], time: float, by: str) -> Notice:
    return Notice(
        kind=str(finding["kind"]),
        cause=str(finding.get("cause") or ""),
        rank=finding.get("rank"),
        time=time,
        severity=str(finding.get("severity", "")),
        by=by,
        what=str(finding.get("what", "")),
        phase=str(finding.get("phase") or ""),
        step=finding.get("step"),
    )


def _from_failure(event: Mapping[str, Any]) -> list[Notice]:
    """What a rank said itself before it ended."""
    problems = event.get("problems") or [{}]
    what, where = str(problems[0].get("what", "")), str(problems[0].get("where", ""))
    kind, rank = "message", event.get("rank")
    if event.get("error") == "NonFiniteError":
        kind, found = "not_finite", _BAD_RANK.search(where)
        rank = int(found[1]) if found else None
    elif event.get("error") == "StorageError" and "disk is full" in what:
        kind = "disk_full"
    step = event.get("step")
    return [Notice(kind, "", rank, float(event["time"]), "critical", "failure", what, step=step)]


def _from_console(console: str, ended: float) -> list[Notice]:
    """The last word of `paceline train`, where nobody else has said anything: a disk that is full keeps no events."""
    lines = [line for line in console.splitlines() if re.match(r"\w*Error: ", line)]
    if not lines:
        return []
    what = lines[-1]
    if "disk is full" in what:
        return [Notice("disk_full", "", None, ended, "critical", "verdict", what)]
    lost = _LOST.search(what)
    if lost:
        return [Notice("dead_rank", "", int(lost[1]), ended, "critical", "verdict", what)]
    return [Notice("message", "", None, ended, "critical", "verdict", what)]
