"""The attempts of one `paceline train`: another one where a rank died and that is wanted, until one ends that no other follows.

    claim, verdict = run_attempts(plan, claim, signals, debug, warm)      # of the last attempt

The run is held all the while; between two attempts no process is left. Each attempt resumes by itself, from what it finds in the run.
With several hosts another attempt also follows when one was lost, came or left, of the size that is there by then.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.cli.attempt import run_attempt
from paceline.cli.launch_plan import LaunchPlan
from paceline.errors import Interrupted, PacelineError, Problem, RankLostError
from paceline.launch.claim import Claim
from paceline.launch.verdict import Verdict
from paceline.launch.warm import WarmAgent
from paceline.telemetry.checkpoints import list_checkpoints
from paceline.telemetry.events import EventLog
from paceline.telemetry.stop_request import EXIT_CODES, read_stop_request

if TYPE_CHECKING:
    from paceline.launch.hosts.leader import Leader
    from paceline.launch.signals import OperatorSignals

_MOST_REGROUPS = 10


def run_attempts(
    plan: LaunchPlan,
    claim: Claim,
    signals: OperatorSignals,
    debug: bool,
    warm: WarmAgent | None,
    leader: Leader | None = None,
) -> tuple[Claim, Verdict]:
    """Trains until an attempt ends that is not followed by another; its claim is not finished yet."""
    limit = plan.job.config.supervise.max_restarts
    restarts, regroups, reached = 0, 0, -1
    while True:
        try:
            # Once: what was said of the machine is not said again by a restart.
            is_first = not restarts and not regroups
            verdict = run_attempt(plan, claim, signals, debug, warm, is_first=is_first, leader=leader)
        except BaseException:
            with contextlib.suppress(PacelineError):
                claim.finish("failed", "the launcher failed", None, 4)
            raise
        is_regrouping = leader is not None and _may_regroup(claim, verdict, signals)
        if not is_regrouping and (restarts == limit or not _may_restart(claim, verdict, signals)):
            return claim, _as_asked(claim, verdict, signals)
        gained, reached = _gained(claim, verdict, reached)
        if is_regrouping:
            # Hosts that come and go, each time before anything was gained, would keep us here for ever.
            regroups = 1 if gained and verdict.step else regroups + 1
            if regroups > _MOST_REGROUPS:
                return claim, _give_up(verdict, f"{_MOST_REGROUPS} attempts in turn gained no step")
        elif restarts and not gained:
            return claim, _give_up(verdict, f"restart {restarts} gained no step")
        else:
            restarts += 1
        try:
            claim.finish(verdict.state, verdict.reason, verdict.step, verdict.exit_code)
        except PacelineError:  # a full disk, on which no attempt would get further
            return claim, verdict
        if leader is not None:
            try:
                leader.gather(signals, is_first=False, is_unwanted=functools.partial(_is_unwanted, claim))
            except PacelineError as error:
                return claim, _not_together(claim, verdict, signals, error)
        claim = claim.begin_again(plan.description, leader.seat() if leader is not None else None)
        with contextlib.suppress(OSError):
            events = EventLog(claim.layout.events, "launcher", claim.attempt)
            if is_regrouping and leader is not None:
                events.write("note", what=f"attempt {claim.attempt} has {leader.describe_seats()}", why=verdict.reason)
            else:
                events.write("restart", why=verdict.reason, restart=restarts, of=limit)
            events.close()


def _gained(claim: Claim, verdict: Verdict, reached: int) -> tuple[bool, int]:
    """Whether another attempt may get further than this one, and how far all of them got, by their steps or by what they saved.

    One that died before its first step says nothing about the next: only their number is bounded.
    """
    saved = [int(path.name.removeprefix("step_")) for path in list_checkpoints(claim.layout.checkpoints)[:1]]
    now = max([verdict.step or 0, *saved])
    return now > reached or not verdict.step, max(now, reached)


def _may_regroup(claim: Claim, verdict: Verdict, signals: OperatorSignals) -> bool:
    """Whether the attempt ended because of which hosts are there, and nobody wants an end of the run."""
    is_asked = signals.asked is not None or _is_unwanted(claim)
    is_resized = verdict.state == "stopped" and verdict.reason == "resize"
    return (is_resized or verdict.is_host_lost) and not is_asked and not verdict.has_left


def _is_unwanted(claim: Claim) -> bool:
    """Whether somebody asked this attempt to stop, and not only for one of another size."""
    request = read_stop_request(claim.layout.stop_request, claim.attempt)
    return request is not None and request.reason != "resize"


def _as_asked(claim: Claim, verdict: Verdict, signals: OperatorSignals) -> Verdict:
    """Ranks that stopped for another size while somebody asked for the end have stopped for that."""
    if verdict.state != "stopped" or verdict.reason != "resize":
        return verdict
    request = read_stop_request(claim.layout.stop_request, claim.attempt)
    reason = signals.asked or (request.reason if request is not None else verdict.reason)
    return replace(verdict, reason=reason, exit_code=EXIT_CODES[reason])


def _not_together(claim: Claim, verdict: Verdict, signals: OperatorSignals, error: PacelineError) -> Verdict:
    """The end of a run whose hosts did not come together again."""
    if isinstance(error, Interrupted):
        request = read_stop_request(claim.layout.stop_request, claim.attempt)
        reason = signals.asked or (request.reason if request is not None else "ctrl_c")
        return Verdict("stopped", reason, verdict.step, EXIT_CODES[reason])
    known = verdict.error.problems if verdict.error is not None else ()
    told = RankLostError(problems=[*known, *error.problems])
    return Verdict("failed", error.problems[0].what, verdict.step, told.exit_code, told)


def _give_up(verdict: Verdict, why: str) -> Verdict:
    """The same end, with the reason why there is no other attempt."""
    problem = verdict.error.problems[0] if verdict.error is not None else Problem(verdict.reason)
    kind = type(verdict.error) if verdict.error is not None else RankLostError
    what = f"{problem.what}; not restarted again: {why}"
    return replace(verdict, error=kind(what, problem.where, problem.do), is_restart_wanted=False)


def _may_restart(claim: Claim, verdict: Verdict, signals: OperatorSignals) -> bool:
    """Whoever asked this attempt to stop does not want another one, even if it died on the way."""
    is_asked = signals.asked is not None or _is_unwanted(claim)
    return verdict.is_worth_restarting and not is_asked
