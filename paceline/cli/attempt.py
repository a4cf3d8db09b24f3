"""One attempt on this host: its agent with the ranks below it, somebody who watches them, and how it ended.

    verdict = run_attempt(plan, claim, signals, debug, warm, is_first=True, leader=None)

Where there are several hosts, `part_command` and `supervise_part` are this host's part, whether it leads or follows.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.examining import examine_machine
from paceline.cli.launch_plan import LaunchPlan
from paceline.launch.claim import Claim
from paceline.launch.command import LAUNCH_MARK, Group, agent_command, claimed_arguments, new_rendezvous_id
from paceline.launch.verdict import Verdict
from paceline.launch.warm import WarmAgent
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout

if TYPE_CHECKING:
    from paceline.launch.hosts.leader import Leader
    from paceline.launch.hosts.message import Begin
    from paceline.launch.signals import OperatorSignals
    from paceline.supervise.beside import SupervisorProcess


def run_attempt(
    plan: LaunchPlan,
    claim: Claim,
    signals: OperatorSignals,
    debug: bool,
    warm: WarmAgent | None,
    is_first: bool,
    leader: Leader | None,
) -> Verdict:
    """From its start to its end; no process of it is left, whatever happens."""
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
