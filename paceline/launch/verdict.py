"""How an attempt ended, decided from everything that was heard of it: pure, reads nothing.

    judge(Evidence(agent_exit=1, exits=[RankExit(rank=1, exit_code=-9, pid=4711)]))
    -> Verdict(state='failed', exit_code=4, error=RankLostError('rank 1 (pid 4711) was killed by signal 9 (SIGKILL; often …)'))

A host that was lost comes first: whatever the ranks that were left say follows from that. An error that a rank reported itself comes
before one that its peers suffered from; both come before what torchrun saw from outside.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import HaltedError, LoaderError, PacelineError, Problem, RankLostError, error_from_record
from paceline.launch.death import KILLED_DO, describe_signal
from paceline.launch.process import RankExit
from paceline.telemetry.stop_request import EXIT_CODES


@dataclass(frozen=True)
class Evidence:
    """Everything that was heard of one attempt."""

    agent_exit: int | None
    failures: Sequence[Mapping[str, Any]] = ()
    """`paceline-failure` records, in the order in which they arrived"""
    exits: Sequence[RankExit] = ()
    """ranks that torchrun saw fail, the first observed one first"""
    events: Sequence[Mapping[str, Any]] = ()
    """events of this attempt"""
    asked: str | None = None
    """ctrl_c or sigterm, if the operator asked this launcher to stop"""
    killed: bool = False
    """the operator did not want to wait"""
    last_step: int | None = None
    """from the pulse of rank 0"""
    incidents: Sequence[Mapping[str, Any]] = ()
    """what the supervisor told, the newest last"""
    tail: Sequence[str] = ()
    """the last lines the agent and its workers printed"""
    lost: Sequence[str] = ()
    """hosts that went away with their ranks, in words"""
    logs: str = "logs/"
    """where the logs of the ranks lie, for error messages"""


@dataclass(frozen=True)
class Verdict:
    """How it ended; `error` is what the operator reads when it failed."""

    state: str
    reason: str
    step: int | None
    exit_code: int
    error: PacelineError | None = None
    traceback: str = field(default="", repr=False)
    is_restart_wanted: bool = False
    """the supervisor ended the attempt so that another one can get further"""
    is_host_lost: bool = False
    """another host went away with its ranks: nothing is wrong with the training itself"""
    has_left: bool = False
    """a process of it could not be ended: it still has its GPU, its memory and the files of the run"""

    @property
    def is_worth_restarting(self) -> bool:
        """Whether another attempt may get further: a rank or loader process that died, or an exception that nobody foresaw.

        What a person has to mend first (a file, a setting, a disk), what would come again (a loss that is not a number) and what was
        asked for is not.
        """
        may_help = self.is_restart_wanted or type(self.error) in (RankLostError, LoaderError, PacelineError)
        return may_help and not self.has_left


def judge(evidence: Evidence) -> Verdict:
    """The verdict on an attempt whose processes have all ended."""
    end = next((e for e in reversed(evidence.events) if e["kind"] == "end"), None)
    if evidence.lost and not evidence.killed and not (end is not None and evidence.agent_exit == 0):
        return _lost(evidence)
    # Whoever supervises it has told us, or, where that was not our own supervisor, the run directory.
    incidents = evidence.incidents or [e for e in evidence.events if e["kind"] == "incident"]
    # Ranks that were asked to stop, and did not come to it, ended as they say themselves.
    actions = (
        ("asked", "killed", "restarted") if end is not None and end["reason"] == "halted" else ("killed", "restarted")
    )
    acted = next((each for each in reversed(incidents) if each.get("action") in actions), None)
    if acted is not None and not evidence.killed:
        return _halted(evidence, acted, end)
    records = _failure_records(evidence)
    primary = [record for record in records if not record.get("secondary")]
    if primary:
        return _failed(evidence, error_from_record(primary[0]), primary[0])
    if evidence.killed:
        reason = evidence.asked or "ctrl_c"
        return Verdict("stopped", reason, evidence.last_step, EXIT_CODES[reason])
    # An agent that was itself told to end has a failing exit code; what its ranks agreed on counts.
    was_told = end is not None and end["reason"] in EXIT_CODES and not evidence.exits
    if end is not None and (evidence.agent_exit == 0 or was_told):
        reason = str(end["reason"])
        return Verdict(str(end["state"]), reason, end.get("step"), EXIT_CODES.get(reason, 0))
    silent = _first_silent(evidence, records)
    if evidence.asked is not None and silent is None:
        # The workers went down while they were asked to: whatever they say now is no failure of the training.
        return Verdict("stopped", evidence.asked, evidence.last_step, EXIT_CODES[evidence.asked])
    if silent is not None:
        return _failed(evidence, _silent_death(silent, evidence.logs))
    if records:
        return _failed(evidence, error_from_record(records[0]), records[0])
    return _failed(evidence, _unknown_failure(evidence))


def _failure_records(evidence: Evidence) -> list[Mapping[str, Any]]:
    """What each failing rank said: on its standard error, or, where that got lost, in its event."""
    heard = {record.get("rank") for record in evidence.failures}
    events = [e for e in evidence.events if e["kind"] == "failure" and e.get("rank") not in heard]
    return [*evidence.failures, *events]


def _failed(evidence: Evidence, error: PacelineError, record: Mapping[str, Any] | None = None) -> Verdict:
    step = record.get("step") if record is not None else None
    return Verdict(
        "failed",
        error.problems[0].what,
        step if step is not None else evidence.last_step,
        error.exit_code,
        error,
        str(record.get("traceback") or "") if record is not None else "",
    )


def _halted(evidence: Evidence, incident: Mapping[str, Any], end: Mapping[str, Any] | None) -> Verdict:
    """The supervisor ended it: whatever the ranks say of their end follows from that."""
    finding = incident["finding"]
    place = str(incident["place"])
    do = f"read {place}/report.md; the same command goes on from the newest checkpoint"
    error = HaltedError(str(finding["what"]), place, do)
    has_stopped = incident["action"] == "asked" and end is not None
    state, step = ("stopped", end["step"]) if has_stopped and end is not None else ("failed", evidence.last_step)
    reason = f"halted: {finding['what']} ({place})"
    is_restart_wanted = incident["action"] == "restarted"
    return Verdict(state, reason, step, error.exit_code, error, is_restart_wanted=is_restart_wanted)


def _lost(evidence: Evidence) -> Verdict:
    """What the other ranks say of their end follows from that."""
    if evidence.asked is not None:
        return Verdict("stopped", evidence.asked, evidence.last_step, EXIT_CODES[evidence.asked])
    do = "look at that host and its link; the same command there joins again"
    return replace(_failed(evidence, RankLostError(evidence.lost[0], evidence.logs, do)), is_host_lost=True)


def _first_silent(evidence: Evidence, records: Sequence[Mapping[str, Any]]) -> RankExit | None:
    """The first rank that ended without a word, other than by the SIGTERM that torchrun sends to the rest.

    Not simply the one that torchrun calls the first: a killed rank and its victims die within one look of it.
    """
    heard = {record.get("rank") for record in records}
    polite = (-signal.SIGTERM, -signal.SIGINT)
    return next((left for left in evidence.exits if left.rank not in heard and left.exit_code not in polite), None)


def _silent_death(cause: RankExit, logs: str) -> RankLostError:
    where = f"{logs}rank_{cause.rank:05d}.log"
    if cause.exit_code >= 0:
        what = f"rank {cause.rank} (pid {cause.pid}) ended with exit code {cause.exit_code} without saying why"
        return RankLostError(what, where, "read the end of that log")
    number = -cause.exit_code
    what = f"rank {cause.rank} (pid {cause.pid}) was killed by {describe_signal(number)}"
    do = KILLED_DO if number == signal.SIGKILL else "read the end of that log"
    return RankLostError(what, where, do)


def _unknown_failure(evidence: Evidence) -> PacelineError:
    if evidence.agent_exit is not None and evidence.agent_exit < 0:
        what = f"the launcher of the workers (torchrun) was killed by {describe_signal(-evidence.agent_exit)}"
    elif evidence.agent_exit == 0:
        what = "the workers ended without saying how the training went"
    else:
        what = f"the workers could not be started, or ended without a word (torchrun's exit code {evidence.agent_exit})"
    last = [line for line in evidence.tail if line.strip()][-15:]
    if last:
        what += "; the last lines were:\n    " + "\n    ".join(last)
    return RankLostError(problems=[Problem(what, f"{evidence.logs}launcher.log", "read that log")])
