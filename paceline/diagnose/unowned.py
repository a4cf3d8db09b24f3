"""A run that run.json calls running and that nobody owns here: abandoned by whoever ran it, or seen from where it does not run."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from paceline.diagnose.deaths import GONE
from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.sight import Sight
from paceline.files import is_locked
from paceline.telemetry.reader import Run
from paceline.telemetry.run_file import SDK_RECIPE

UNSEEN = "copy"
ABANDONED = "abandoned"
"""causes of these findings"""


def has_living(sights: Sequence[Sight]) -> bool:
    """Whether a process of the run was seen alive."""
    processes = [seen.process for seen in sights[-1].ranks] if sights else []
    return any(process is not None and process.state not in GONE for process in processes)


def report_unowned(
    run: Run, sights: Sequence[Sight], is_owned: bool | None, *, is_halted: bool = False
) -> Finding | None:
    """`is_owned`: whether somebody holds the lock of this directory; None: it cannot be told. `is_halted`: a supervisor ended it."""
    here, there = socket.gethostname(), _read_host(run)
    if has_living(sights):
        if is_owned is not False:
            return None
        if there is not None and there != here and run.run.attempts[-1].hosts:
            # Locks need not be seen from host to host.
            return _report_unseen(f"{there} owns it, and some of its ranks run on {here}", f"on {there}")
        if is_locked(run.layout.workers_lock, shared=False):  # its ranks share it
            return _report_orphans(run)
        return _report_unseen("its ranks run on this host, and hold no lock of this directory", "where it runs")
    if there is not None and there != here:
        return _report_unseen(f"it ran on {there}, and this is {here}", f"on {there}")
    return _report_abandoned(run, is_halted=is_halted) if is_owned is False else None


def _read_host(run: Run) -> str | None:
    """Where it was started; rank 0's last heartbeat says it, too."""
    if run.run.attempts and run.run.attempts[-1].hosts:
        return min(run.run.attempts[-1].hosts, key=lambda each: each.index).host
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        host = run.environment().get("host")
        if isinstance(host, str):
            return host
    hosts = [beat.get("host") for beat in run.last_beats()[:1]]
    return hosts[0] if hosts and isinstance(hosts[0], str) else None


def _report_unseen(why: str, where: str) -> Finding:
    return Finding(
        "message",
        f"a copy of a run that was running, or its directory seen from elsewhere ({why}): whether it still runs cannot be seen from here",
        f"ask {where}: paceline diagnose, of the run's own directory",
        severity="note",
        cause=UNSEEN,
        witnesses=(Witness("process", True, why),),
    )


def _report_orphans(run: Run) -> Finding:
    return Finding(
        "message",
        f"{_owner(run)} has gone, and ranks of this run still run",
        "paceline preflight names the processes that are left; end them, then start the run again",
        severity="critical",
        cause="orphans",
        witnesses=(Witness("process", True, "the lock of its owner is free, that of its ranks is not"),),
    )


def _report_abandoned(run: Run, *, is_halted: bool) -> Finding:
    attempt = run.run.attempts[-1] if run.run.attempts else None
    again = f"with the same command, it goes on from its last checkpoint: paceline train … --out {run.layout.root}"
    if run.run.recipe == SDK_RECIPE:
        again = "as you did before; it goes on from where your own checkpoints are"
    how = f"{_owner(run)} ended without a word, so it was killed, or its host went down"
    if is_halted:
        how = "a supervisor ended its ranks, and was gone itself before it could write that into run.json"
    return Finding(
        "message",
        f"nobody runs this run any more: {how}",
        f"start it again {again}",
        severity="warning" if is_halted else "critical",  # why it was ended comes first
        cause=ABANDONED,
        step=attempt.step if attempt is not None else None,
        witnesses=(Witness("process", True, "the lock of its owner is free, and run.json still says running"),),
    )


def _owner(run: Run) -> str:
    return f"process {run.run.attempts[-1].owner_pid}" if run.run.attempts else "its owner"
