"""Ranks that the operating system has stopped, or that have gone: which of them is the cause, and how it ended.

report_deaths(dead, everybody, since)   -> Finding("dead_rank", …, cause="sigkill", rank=1), or one finding for a whole host
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.sight import ProcessSight
from paceline.diagnose.standing import Standing, name_ranks
from paceline.telemetry.pulse import Pulse

GONE = ("gone", "zombie")


def has_died(process: ProcessSight, pulse: Pulse | None) -> bool:
    """Gone otherwise than as it should, after its last word."""
    if process.state not in GONE:
        return False
    if process.exit_code is not None:
        return process.exit_code != 0
    return pulse is None or pulse.phase != "end"


def report_stopped(standing: Standing, since: float) -> Finding:
    assert standing.process is not None
    pid = standing.process.pid
    return Finding(
        "stopped",
        f"rank {standing.rank} (pid {pid}) is stopped by the operating system, in {standing.where}",
        f"kill -CONT {pid} lets it go on; whoever sent SIGSTOP, a debugger or a job scheduler, can say why",
        severity="critical",
        cause="sigstop",
        rank=standing.rank,
        host=standing.host,
        phase=standing.phase,
        step=standing.step,
        since=since,
        witnesses=(Witness("process", True, "state stopped (T)"),),
    )


def report_deaths(dead: Sequence[Standing], everybody: Sequence[Standing], since: float) -> Finding:
    """Of ranks that were first seen gone at the same moment: who was killed is the cause, who was sent away is not."""
    guilty = [standing for standing in dead if _is_violent(standing.process)] or list(dead)
    ranks = {standing.rank for standing in guilty}
    hosts = {
        standing.host for standing in everybody if not standing.is_elsewhere
    }  # who is here to see it is no dead host
    for host in sorted(hosts) if len(hosts) > 1 and len(ranks) > 1 else ():
        if {standing.rank for standing in everybody if standing.host == host} == ranks:
            return _report_host(host, guilty, since)
    return _report_ranks(guilty, len(everybody), since)


def _is_violent(process: ProcessSight | None) -> bool:
    """Whether it was killed, otherwise than by the SIGTERM or SIGINT with which the others are sent away."""
    code = process.exit_code if process is not None else None
    return code is not None and code < 0 and -code not in (signal.SIGTERM, signal.SIGINT)


def _report_ranks(standings: Sequence[Standing], world_size: int, since: float) -> Finding:
    first = standings[0]
    code = first.process.exit_code if first.process is not None else None
    ranks = tuple(standing.rank for standing in standings)
    cause, how = _explain_exit(code, is_one=len(ranks) == 1)
    return Finding(
        "dead_rank",
        f"{name_ranks(ranks)} of {world_size} {how}, in {first.where}",
        f"read the end of logs/rank_{first.rank:05d}.log; dmesg tells whether the kernel killed it for its memory",
        severity="critical",
        cause=cause,
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks if len(ranks) > 1 else (),
        host=first.host if len({standing.host for standing in standings}) == 1 else None,
        phase=first.phase,
        step=first.step,
        since=since,
        witnesses=(Witness("process", True, how),),
    )


def _report_host(host: str, standings: Sequence[Standing], since: float) -> Finding:
    ranks = tuple(standing.rank for standing in standings)
    return Finding(
        "dead_host",
        f"all ranks of host {host} have gone ({name_ranks(ranks)})",
        f"look whether {host} answers at all, then at its kernel's log",
        severity="critical",
        ranks=ranks,
        host=host,
        phase=standings[0].phase,
        step=standings[0].step,
        since=since,
        witnesses=(Witness("process", True, "every process there has gone"),),
    )


def _explain_exit(code: int | None, *, is_one: bool) -> tuple[str, str]:
    if code is None:
        gone = "has gone (its process is" if is_one else "have gone (their processes are"
        return "gone", f"{gone} no longer there)"
    if code >= 0:
        return f"exit_{code}", f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return name.lower(), f"{'was' if is_one else 'were'} killed by {name}"
