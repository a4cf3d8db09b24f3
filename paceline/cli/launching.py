"""From a job to a trained model, or a clear word on why not: the launcher's side of `paceline train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.ending import describe_ending
from paceline.cli.launch_plan import plan_launch
from paceline.errors import HaltedError, PacelineError
from paceline.launch.claim import AlreadyFinished, Claim, claim_run
from paceline.launch.origin import Wish
from paceline.launch.warm import WarmAgent
from paceline.recipes.job import Job
from paceline.telemetry.checkpoints import list_checkpoints

if TYPE_CHECKING:
    from paceline.launch.verdict import Verdict


def launch(job: Job, wish: Wish, dry_run: bool, debug: bool, warm: WarmAgent | None) -> int:
    """Trains the job, or prints what would be started; the exit code."""
    plan = plan_launch(job, wish)
    if dry_run:
        print("\n".join(plan.lines(debug)))
        return 0
    if plan.hosts is not None:
        from paceline.cli.together import train_together

        return train_together(plan, plan.hosts, debug, warm)
    claim = claim_run(plan.root, plan.description, plan.placement.world_size, plan.origin)
    if isinstance(claim, AlreadyFinished):
        print_finished(claim)
        return 0
    try:
        from paceline.cli.attempts import run_attempts
        from paceline.launch.signals import OperatorSignals

        with OperatorSignals() as signals:
            last, verdict = run_attempts(plan, claim, signals, debug, warm)
            return conclude(last, verdict, debug)
    finally:
        claim.release()


def conclude(claim: Claim, verdict: Verdict, debug: bool) -> int:
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
        is_worth_it = verdict.is_worth_restarting or isinstance(verdict.error, HaltedError)
        if is_worth_it and list_checkpoints(claim.layout.checkpoints):
            print("the same command goes on from the newest checkpoint; --max-restarts N does so by itself")
    elif verdict.state == "stopped":
        print(describe_ending(claim.layout, verdict.state, verdict.reason, verdict.step))
    print(f"run: {claim.layout.root}")
    return verdict.exit_code


def _print_results(root: Path, state: str) -> None:
    from paceline.launch.progress import build_console
    from paceline.launch.results import results_table
    from paceline.telemetry.reader import read_run

    table = results_table(read_run(root), state)
    if table.row_count:
        build_console().print(table)


def print_finished(finished: AlreadyFinished) -> None:
    print("this run has already finished; its results:")
    _print_results(finished.layout.root, finished.run.state)
    if finished.changed:
        print("changed since then, and without effect on a finished run:")
        print("\n".join(f"  {line}" for line in finished.changed))
    print(f"run: {finished.layout.root}   (--out DIR starts a fresh one)")
