"""Everything that a run directory alone says about what is wrong with its run, whether it lives, has ended, or came by mail.

examine_run(read_run(Path("runs/a")))   -> findings, the most likely cause first
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.diagnose.advice import fit_advice
from paceline.diagnose.beats import judge_beats
from paceline.diagnose.bounds import judge_bounds, judge_pulses
from paceline.diagnose.divergence import judge_metrics
from paceline.diagnose.failures import judge_failures
from paceline.diagnose.finding import Finding, finding_from_record
from paceline.diagnose.limits import Limits
from paceline.diagnose.liveness import Liveness
from paceline.diagnose.naming import name_host
from paceline.diagnose.order import order_causes
from paceline.diagnose.sight import Sight
from paceline.diagnose.signatures import match_messages
from paceline.diagnose.sources import reads_logs
from paceline.diagnose.unowned import has_living, report_unowned
from paceline.files import read_json
from paceline.telemetry.reader import Run

_TAIL_BYTES = 1 << 19
"""of each log: what ended a run is near its end"""
_MOST_LOGS = 256
_DEATHS = ("dead_rank", "dead_host")
_MOMENTARY = ("stall", "stopped", "slow", *_DEATHS)
"""what was true at a moment, and need not be any more"""
_OF_A_KILL = ("sigkill", "RankLostError", "killed", "peer_gone")
"""causes that follow from the end that a supervisor gave to an attempt"""


def examine_run(
    run: Run, sights: Sequence[Sight] = (), *, is_owned: bool | None = None, limits: Limits | None = None
) -> list[Finding]:
    """`sights`: two or more of a run that lives, a second apart. `is_owned`: whether somebody runs it now; None: not known."""
    limits = limits or Limits()
    attempt = run.run.attempts[-1] if run.run.attempts else None
    is_running = run.run.state == "running"
    holding = _look(sights, limits)
    found = [*judge_failures(attempt, run.events), *holding]
    is_halted = attempt is not None and any(_has_killed(event) for event in _incidents(run, attempt.attempt))
    unowned = report_unowned(run, sights, is_owned, is_halted=is_halted) if is_running and not is_owned else None
    found += [unowned] if unowned is not None else []
    if is_halted:
        is_victim = {id(finding) for finding in holding if finding.kind in _DEATHS}
        found = [finding for finding in found if finding.cause not in _OF_A_KILL and id(finding) not in is_victim]
        messages = [finding for finding in _read_messages(run) if finding.cause not in _OF_A_KILL]
    else:
        messages = _read_messages(run)
    found += _recall(run, holding if sights else None)
    has_culprit = any(finding.kind in _MOMENTARY and finding.severity == "critical" for finding in found)
    if attempt is not None:
        # Who stood still at the end is asked where nobody else can say it.
        is_asked = run.run.state in ("running", "failed") and not sights and not has_culprit
        beats = judge_beats(_read_beats(run), attempt.attempt, limits)
        found += [finding for finding in beats if is_asked or finding.kind != "stall"]
    found += messages
    found += judge_metrics(run.metrics, run.events)
    found += judge_bounds(run.timed, {rank: run.timing(rank) for rank in _ranks_in(run.layout.root / "timing")})
    if sights:
        found += judge_pulses(seen.pulse for seen in sights[-1].ranks if seen.pulse is not None)
    told = order_causes(_without_echoes(found))
    told = [name_host(finding, attempt) for finding in told] if attempt is not None else told
    told += _recall_earlier(run)
    return [fit_advice(finding, run, is_living=has_living(sights)) for finding in told]


def _look(sights: Sequence[Sight], limits: Limits) -> list[Finding]:
    if not sights:
        return []
    liveness = Liveness(limits)
    liveness.begin(sights[0])
    found: list[Finding] = []
    for sight in sights:
        found = liveness.see(sight)
    return found


def _recall(run: Run, seen: Sequence[Finding] | None) -> list[Finding]:
    """What a supervisor found while the last attempt ran; `seen`: what holds now, of a run that was looked at."""
    attempt = run.run.attempts[-1].attempt if run.run.attempts else None
    latest: dict[tuple[str, int | None], tuple[Finding, dict[str, Any]]] = {}
    for event in run.events:
        if event.get("kind") not in ("incident", "finding") or event.get("attempt") != attempt:
            continue
        finding = finding_from_record(event.get("finding"))
        if finding is not None:
            place = f"; its stacks and beats: incidents/{event['incident']}" if event.get("incident") else ""
            latest[finding.subject] = replace(finding, do=finding.do + place), event
    has_gone_on = run.run.state in ("finished", "stopped")
    holding = {finding.subject for finding in seen or ()}
    stands_still = any(finding.kind in _MOMENTARY and finding.severity == "critical" for finding in seen or ())
    recalled = []
    for finding, event in latest.values():
        goes_on = seen is not None and finding.subject not in holding and (not stands_still or _has_ended(run, event))
        if (has_gone_on or goes_on) and finding.kind in _MOMENTARY and not _has_killed(event):
            finding = replace(finding, severity="note", what=f"{finding.what}; the run went on afterwards")
        recalled.append(finding)
    return recalled


def _incidents(run: Run, attempt: int) -> list[dict[str, Any]]:
    """What supervisors said of their incidents; one that was acted upon was said again."""
    return [event for event in run.events_of("incident") if event.get("attempt") == attempt]


def _has_killed(event: dict[str, Any]) -> bool:
    return event.get("action") in ("killed", "restarted")


def _has_ended(run: Run, event: dict[str, Any]) -> bool:
    """Whether a supervisor saw the end of it; a finding that is no incident has none."""
    report = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        report = read_json(run.layout.incidents / str(event.get("incident")) / "report.json")
    return isinstance(report, dict) and report.get("ended") is not None


def _recall_earlier(run: Run) -> list[Finding]:
    """The incidents of the attempts before the last one: over, and worth knowing."""
    told: dict[object, Finding] = {}
    for attempt in run.run.attempts[:-1]:
        for event in _incidents(run, attempt.attempt):
            finding = finding_from_record(event.get("finding"))
            if finding is None:
                continue
            end = ", and its supervisor ended it" if _has_killed(event) else ""
            what = f"in attempt {attempt.attempt}{end}: {finding.what}"
            do = f"nothing, if it does not come again; see incidents/{event.get('incident')}/report.md"
            told[event.get("incident")] = replace(finding, severity="note", what=what, do=do)
    return list(told.values())


def _read_beats(run: Run) -> dict[int, list[dict[str, object]]]:
    ranks = _ranks_in(run.layout.root / "heartbeat")
    return {rank: run.newest_beats(rank) for rank in ranks}


def _read_messages(run: Run) -> list[Finding]:
    """Of what the last attempt wrote."""
    if not reads_logs(run):
        return []
    found = []
    began = run.run.attempts[-1].log_bytes if run.run.attempts else {}
    for path in sorted(run.layout.launcher_log.parent.glob("*.log"))[:_MOST_LOGS]:
        rank = path.stem.removeprefix("rank_")
        found += match_messages(_tail(path, began.get(path.name)), int(rank) if rank.isdecimal() else None)
    return _merge_messages(found)


def _tail(path: Path, began: object) -> Iterable[str]:
    """`began`: the size that it had when the attempt began."""
    first = began if isinstance(began, int) else 0
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES, first))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _merge_messages(found: Sequence[Finding]) -> list[Finding]:
    """One finding per message: a launcher's log repeats what its ranks print."""
    merged: dict[tuple[str, int | None], Finding] = {}
    for finding in sorted(found, key=lambda each: each.rank is None and not each.ranks):
        same = [key for key in merged if key[0] == finding.cause]
        if same and finding.rank is None:
            continue
        merged.setdefault((finding.cause, finding.rank), finding)
    return list(merged.values())


def _without_echoes(found: Sequence[Finding]) -> list[Finding]:
    """What a rank said itself comes before the same thing seen elsewhere: its memory in a log, its own end in a table."""
    told = {finding.kind for finding in found if finding.witnesses and finding.witnesses[0].name == "events"}
    return [
        finding
        for finding in found
        if not (finding.kind in told and finding.witnesses and finding.witnesses[0].name in ("log", "metrics"))
    ]


def _ranks_in(directory: Path) -> list[int]:
    names = (path.stem.removeprefix("rank_") for path in directory.glob("rank_*"))
    return sorted(int(name) for name in names if name.isdecimal())
