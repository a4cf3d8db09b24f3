"""The attempts of one `paceline train`: each from its start to a verdict, and another one where a rank died and that is wanted.

    claim, verdict = run_attempts(plan, claim, signals, debug, warm)      # of the last attempt

The run is held all the while; between two attempts no process is left. Each attempt resumes by itself, from what it finds in the run.
With several hosts another attempt also follows when one was lost, came or left, of the size that is there by then.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.examining import examine_machine
from paceline.cli.launch_plan import LaunchPlan
from paceline.errors import Interrupted, PacelineError, Problem, RankLostError
from paceline.launch.claim import Claim
from paceline.launch.command import LAUNCH_MARK, Group, agent_command, claimed_arguments, new_rendezvous_id
from paceline.launch.verdict import Verdict
from paceline.launch.warm import WarmAgent
from paceline.telemetry.checkpoints import list_checkpoints
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.stop_request import EXIT_CODES, read_stop_request

if TYPE_CHECKING:
    from paceline.launch.hosts.leader import Leader
    from paceline.launch.hosts.message import Begin
    from paceline.launch.signals import OperatorSignals
    from paceline.supervise.beside import SupervisorProcess

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
            verdict = _run_attempt(plan, claim, signals, debug, warm, is_first=is_first, leader=leader)
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


def _run_attempt(
    plan: LaunchPlan,
    claim: Claim,
    signals: OperatorSignals,
    debug: bool,
    warm: WarmAgent | None,
    is_first: bool,
    leader: Leader | None,
) -> Verdict:
    from paceline.launch.session import Session

    rendezvous_id = new_rendezvous_id()
    begin = (
        leader.begin(claim.attempt, claim.run.id, claim.pulses, rendezvous_id, debug) if leader is not None else None
    )
    command = part_command(plan, claim.layout.root, claim.attempt, claim.pulses, rendezvous_id, debug, begin)
    if plan.job.recipe.foreign is not None:
        command = plan.job.recipe.foreign.start(claim.layout.root, claim.attempt)
    environment = plan.environment.apply(os.environ) | {LAUNCH_MARK: rendezvous_id}
    examine = functools.partial(examine_machine, plan, claim, environment) if is_first else None
    watch = functools.partial(supervise_part, plan, claim.layout, claim.attempt, begin, 0, claim.pulses)
    supervise = watch if plan.job.config.supervise.enabled else None
    session = Session(claim, command, environment, rendezvous_id, signals, warm, examine, supervise, leader)
    try:
        from paceline.launch.progress import Progress, build_console

        _record_start(plan, claim, command)
        with Progress(claim.layout, claim.attempt, build_console(), claim.pulses) as progress:
            progress.say(f"run {claim.layout.root}")
            for note in claim.notes:
                progress.say(note, "yellow")
            if leader is not None:
                leader.say = progress.say
                progress.say(leader.describe_seats())
            return session.follow(progress)
    except BaseException:
        session.end()
        raise


def part_command(
    plan: LaunchPlan,
    root: Path,
    attempt: int,
    pulses: Path,
    rendezvous_id: str,
    debug: bool,
    begin: Begin | None,
) -> list[str]:
    """The agent's command line on this host; `begin` is its part where there are others."""
    group = None
    if begin is not None and begin.nnodes > 1:
        group = Group(begin.nnodes, begin.node_rank, begin.master_addr, begin.master_port)
    return agent_command(
        plan.placement.world_size,
        claimed_arguments(root, attempt, debug),
        rendezvous_id=rendezvous_id,
        scratch=pulses / "torchelastic",
        group=group,
    )


def supervise_part(
    plan: LaunchPlan, layout: RunLayout, attempt: int, begin: Begin | None, host_index: int, pulses: Path
) -> SupervisorProcess:
    """Somebody who watches the ranks of this host."""
    from paceline.supervise.beside import SupervisorProcess
    from paceline.supervise.settings import settings_from

    settings = settings_from(plan.job.config.supervise.model_dump())
    ranks = begin.ranks if begin is not None and begin.nnodes > 1 else None
    return SupervisorProcess(layout, attempt, pulses, settings, ranks, host_index)


def _record_start(plan: LaunchPlan, claim: Claim, command: list[str]) -> None:
    """The launcher's own events. A full disk is reported by the workers, who cannot go on without it."""
    with contextlib.suppress(OSError):
        events = EventLog(claim.layout.events, "launcher", claim.attempt)
        notes = plan.environment.notes
        environment = [asdict(note) for note in notes]
        events.write("start", command=command, world_size=claim.run.attempts[-1].world_size, environment=environment)
        for note in notes:
            shown = f"{note.name}={note.value}" if note.value is not None else f"{note.name} (taken out)"
            if note.name == "OMP_NUM_THREADS":
                events.choice("launch.omp_threads", plan.job.config.launch.omp_threads, note.value, note.reason)
            elif note.origin == "launch.interface" and note.name.startswith("GLOO"):
                events.choice("launch.interface", plan.job.config.launch.interface, note.value, note.reason)
            elif note.is_warning:
                events.write("warning", what=f"{shown} ({note.origin})", why=note.reason)
            elif note.is_renamed:
                events.write("note", what=f"{shown} ({note.origin})", why=note.reason)
        events.close()
