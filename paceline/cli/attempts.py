"""The attempts of one `paceline train`: each from its start to a verdict, and another one where a rank died and that is wanted.

    claim, verdict = run_attempts(plan, claim, signals, debug, warm)      # of the last attempt

The run is held all the while; between two attempts no process is left. Each attempt resumes by itself, from what it finds in the run.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from paceline.cli.examining import examine_machine
from paceline.cli.launch_plan import LaunchPlan
from paceline.errors import PacelineError
from paceline.launch.claim import Claim
from paceline.launch.command import LAUNCH_MARK, agent_command, claimed_arguments, new_rendezvous_id
from paceline.launch.warm import WarmAgent
from paceline.telemetry.checkpoints import list_checkpoints
from paceline.telemetry.events import EventLog
from paceline.telemetry.stop_request import read_stop_request

if TYPE_CHECKING:
    from paceline.launch.signals import OperatorSignals
    from paceline.launch.verdict import Verdict
    from paceline.supervise.beside import SupervisorProcess


def run_attempts(
    plan: LaunchPlan, claim: Claim, signals: OperatorSignals, debug: bool, warm: WarmAgent | None
) -> tuple[Claim, Verdict]:
    """Trains until an attempt ends that is not followed by another; its claim is not finished yet."""
    limit = plan.job.config.supervise.max_restarts
    restarts, reached = 0, -1
    while True:
        try:
            # Once: what was said of the machine is not said again by a restart.
            verdict = _run_attempt(plan, claim, signals, debug, warm, is_first=not restarts)
        except BaseException:
            with contextlib.suppress(PacelineError):
                claim.finish("failed", "the launcher failed", None, 4)
            raise
        if restarts == limit or not _may_restart(claim, verdict, signals):
            return claim, verdict
        gained, reached = _gained(claim, verdict, reached)
        if restarts and not gained:
            return claim, _give_up(verdict, restarts)
        restarts += 1
        try:
            claim.finish(verdict.state, verdict.reason, verdict.step, verdict.exit_code)
        except PacelineError:  # a full disk, on which no attempt would get further
            return claim, verdict
        claim = claim.begin_again(plan.description)
        with contextlib.suppress(OSError):
            events = EventLog(claim.layout.events, "launcher", claim.attempt)
            events.write("restart", why=verdict.reason, restart=restarts, of=limit)
            events.close()


def _gained(claim: Claim, verdict: Verdict, reached: int) -> tuple[bool, int]:
    """Whether another attempt may get further than this one, and how far all of them got, by their steps or by what they saved.

    One that died before its first step says nothing about the next: only their number is bounded.
    """
    saved = [int(path.name.removeprefix("step_")) for path in list_checkpoints(claim.layout.checkpoints)[:1]]
    now = max([verdict.step or 0, *saved])
    return now > reached or not verdict.step, max(now, reached)


def _give_up(verdict: Verdict, restarts: int) -> Verdict:
    """The same end, with the reason why there is no other attempt."""
    assert verdict.error is not None
    problem = verdict.error.problems[0]
    what = f"{problem.what}; not restarted again: restart {restarts} gained no step"
    return replace(verdict, error=type(verdict.error)(what, problem.where, problem.do), is_restart_wanted=False)


def _may_restart(claim: Claim, verdict: Verdict, signals: OperatorSignals) -> bool:
    """Whoever asked this attempt to stop does not want another one, even if it died on the way."""
    is_asked = signals.asked is not None or read_stop_request(claim.layout.stop_request, claim.attempt) is not None
    return verdict.is_worth_restarting and not is_asked


def _run_attempt(
    plan: LaunchPlan, claim: Claim, signals: OperatorSignals, debug: bool, warm: WarmAgent | None, is_first: bool
) -> Verdict:
    from paceline.launch.session import Session

    rendezvous_id = new_rendezvous_id()
    arguments = claimed_arguments(claim.layout.root, claim.attempt, debug)
    scratch = claim.pulses / "torchelastic"
    command = agent_command(plan.placement.world_size, arguments, rendezvous_id=rendezvous_id, scratch=scratch)
    if plan.job.recipe.foreign is not None:
        command = plan.job.recipe.foreign.start(claim.layout.root, claim.attempt)
    environment = plan.environment.apply(os.environ) | {LAUNCH_MARK: rendezvous_id}
    examine = functools.partial(examine_machine, plan, claim, environment) if is_first else None
    supervise = functools.partial(_supervise, plan, claim) if plan.job.config.supervise.enabled else None
    session = Session(claim, command, environment, rendezvous_id, signals, warm, examine, supervise)
    try:
        from paceline.launch.progress import Progress, build_console

        _record_start(plan, claim, command)
        with Progress(claim.layout, claim.attempt, build_console(), claim.pulses) as progress:
            progress.say(f"run {claim.layout.root}")
            for note in claim.notes:
                progress.say(note, "yellow")
            return session.follow(progress)
    except BaseException:
        session.end()
        raise


def _supervise(plan: LaunchPlan, claim: Claim) -> SupervisorProcess:
    from paceline.supervise.beside import SupervisorProcess
    from paceline.supervise.settings import settings_from

    settings = settings_from(plan.job.config.supervise.model_dump())
    return SupervisorProcess(claim.layout, claim.attempt, claim.pulses, settings)


def _record_start(plan: LaunchPlan, claim: Claim, command: list[str]) -> None:
    """The launcher's own events. A full disk is reported by the workers, who cannot go on without it."""
    with contextlib.suppress(OSError):
        events = EventLog(claim.layout.events, "launcher", claim.attempt)
        notes = plan.environment.notes
        environment = [asdict(note) for note in notes]
        events.write("start", command=command, world_size=plan.placement.world_size, environment=environment)
        for note in notes:
            shown = f"{note.name}={note.value}" if note.value is not None else f"{note.name} (taken out)"
            if note.name == "OMP_NUM_THREADS":
                events.choice("launch.omp_threads", plan.job.config.launch.omp_threads, note.value, note.reason)
            elif note.is_warning:
                events.write("warning", what=f"{shown} ({note.origin})", why=note.reason)
            elif note.is_renamed:
                events.write("note", what=f"{shown} ({note.origin})", why=note.reason)
        events.close()
