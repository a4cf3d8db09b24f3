"""From a job to a trained model, or a clear word on why not: the launcher's side of `paceline train`."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.contradictions import Facts
from paceline.errors import PacelineError
from paceline.launch.claim import AlreadyFinished, Claim, claim_run
from paceline.launch.command import agent_command, claimed_arguments, free_arguments, new_rendezvous_id, shell_line
from paceline.launch.environment import WorkerEnvironment, worker_environment
from paceline.launch.placement import Placement, place_ranks
from paceline.launch.warm import WarmAgent
from paceline.recipes.job import Job
from paceline.telemetry.events import EventLog

if TYPE_CHECKING:
    from paceline.launch.signals import OperatorSignals
    from paceline.launch.verdict import Verdict


def launch(job: Job, dry_run: bool, debug: bool, warm: WarmAgent | None) -> int:
    """Trains the job, or prints what would be started; the exit code."""
    plan = plan_launch(job)
    if dry_run:
        print("\n".join(plan.lines(debug)))
        return 0
    claim = claim_run(plan.root, plan.job.describe_run(sys.argv, plan.identity), plan.placement.world_size)
    if isinstance(claim, AlreadyFinished):
        _print_finished(claim)
        return 0
    try:
        return _train(plan, claim, debug, warm)
    finally:
        claim.release()


@dataclass(frozen=True)
class LaunchPlan:
    """What will be started, decided before anything is."""

    job: Job
    placement: Placement
    identity: dict[str, object]
    root: Path
    environment: WorkerEnvironment

    def lines(self, debug: bool) -> list[str]:
        """What `--dry-run` prints: the plan, and a command line that does the same when pasted."""
        num_gpus, world_size = self.placement.num_gpus, self.placement.world_size
        where = f"{num_gpus} GPU{'' if num_gpus == 1 else 's'}" if num_gpus else "the CPU"
        is_recipe = self.job.target == self.job.recipe.name
        target = self.job.target if is_recipe else str(Path(self.job.target).absolute())
        arguments = free_arguments(target, self.job.overrides, self.root, debug)
        lines = [
            f"recipe        {self.job.recipe.name}",
            f"fingerprint   {str(self.identity['fingerprint'])[:16]}",
            f"run directory {self.root}",
            f"workers       {world_size} on {where}",
            "environment",
        ]
        for note in self.environment.notes:
            value = "(taken out)" if note.value is None else note.value
            mark = "warning: " if note.is_warning else ""
            lines.append(f"  {note.name}={value}   {note.origin}: {mark}{note.reason}")
        command = agent_command(world_size, arguments)
        line = shell_line(command, self.environment.assigned, self.environment.removed, Path.cwd())
        return [*lines, "command", line]


def plan_launch(job: Job) -> LaunchPlan:
    """Meets the configuration with this machine; everything that can be refused is refused here."""
    launch = job.config.launch
    placement = place_ranks(launch, job.origins["launch.gpus"])
    world_size, num_gpus = placement.world_size, placement.num_gpus
    job.check(Facts(world_size, num_gpus))
    identity = job.identity()
    root = job.default_root(identity).absolute()
    recorder = root / "logs" / "flight_recorder_rank_"
    environment = worker_environment(
        launch, world_size, num_gpus, os.environ, visible=placement.visible, flight_recorder=recorder
    )
    return LaunchPlan(job, placement, identity, root, environment)


def _train(plan: LaunchPlan, claim: Claim, debug: bool, warm: WarmAgent | None) -> int:
    from paceline.launch.signals import OperatorSignals

    with OperatorSignals() as signals:
        try:
            verdict = _run_attempt(plan, claim, signals, debug, warm)
        except BaseException:
            with contextlib.suppress(PacelineError):
                claim.finish("failed", "the launcher failed", None, 4)
            raise
        return _conclude(claim, verdict, debug)


def _run_attempt(
    plan: LaunchPlan, claim: Claim, signals: OperatorSignals, debug: bool, warm: WarmAgent | None
) -> Verdict:
    from paceline.launch.session import Session

    rendezvous_id = new_rendezvous_id()
    arguments = claimed_arguments(claim.layout.root, claim.attempt, debug)
    scratch = claim.pulses / "torchelastic"
    command = agent_command(plan.placement.world_size, arguments, rendezvous_id=rendezvous_id, scratch=scratch)
    session = Session(claim, command, plan.environment.apply(os.environ), rendezvous_id, signals, warm)
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


def _conclude(claim: Claim, verdict: Verdict, debug: bool) -> int:
    """Writes the end into the run and tells the operator: the results, or what went wrong."""
    try:
        claim.finish(verdict.state, verdict.reason, verdict.step, verdict.exit_code)
    except PacelineError:  # a disk that is full, or read-only by now: the workers have said so
        if verdict.error is None:
            raise
    if verdict.error is None or verdict.step:
        _print_results(claim.layout.root, verdict.state)
    if verdict.error is not None:
        if debug and verdict.traceback:
            print(verdict.traceback, file=sys.stderr)
        print(verdict.error.render(), file=sys.stderr)
    elif verdict.state == "stopped":
        at = f" at step {verdict.step:,}" if verdict.step is not None else ""
        print(f"stopped{at} ({verdict.reason})")
    print(f"run: {claim.layout.root}")
    return verdict.exit_code


def _print_results(root: Path, state: str) -> None:
    from paceline.launch.progress import build_console
    from paceline.launch.results import results_table
    from paceline.telemetry.reader import read_run

    table = results_table(read_run(root), state)
    if table.row_count:
        build_console().print(table)


def _print_finished(finished: AlreadyFinished) -> None:
    print("this run has already finished; its results:")
    _print_results(finished.layout.root, finished.run.state)
    if finished.changed:
        print("changed since then, and without effect on a finished run:")
        print("\n".join(f"  {line}" for line in finished.changed))
    print(f"run: {finished.layout.root}   (--out DIR starts a fresh one)")
