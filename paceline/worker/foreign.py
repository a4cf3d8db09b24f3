"""Under a launcher that is not ours: rank 0 claims the run directory for all ranks, and shows progress and results itself.

Imported only there: our own launcher does all of this in its own process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

from paceline.config.contradictions import Facts
from paceline.engine.ranks import Ranks
from paceline.engine.state import Ending
from paceline.errors import PacelineError, UsageError
from paceline.files import storage_errors, write_json
from paceline.launch.claim import AlreadyFinished, Claim, claim_run
from paceline.launch.origin import Wish, plan_origin
from paceline.launch.progress import Progress
from paceline.launch.record import describe_environment
from paceline.launch.results import results_table
from paceline.launch.weights import find_weights
from paceline.recipes.job import Job
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import read_run
from paceline.telemetry.stop_request import EXIT_CODES
from paceline.worker.output import Output
from paceline.worker.place import Place


def claim_together(arguments: argparse.Namespace, job: Job, ranks: Ranks) -> Place:
    """Rank 0 claims, all ranks learn where and as which attempt; if it cannot, it says why and all of them end with its exit code."""
    claim: Claim | None = None
    failure: BaseException | None = None
    message: list[dict[str, Any]] = [{}]
    if ranks.is_first:
        try:
            job.check(Facts(ranks.world_size, torch.cuda.device_count()))
            claim = _claim(arguments, job, ranks.world_size)
            message = [{"root": str(claim.layout.root), "attempt": claim.attempt}]
        except BaseException as error:
            failure = error
            message = [{"exit_code": error.exit_code if isinstance(error, PacelineError) else PacelineError.exit_code}]
    if ranks.has_group:
        dist.broadcast_object_list(message, src=0)
    if failure is not None:
        raise failure
    if "exit_code" in message[0]:
        raise SystemExit(message[0]["exit_code"])
    return Place(RunLayout(Path(message[0]["root"])), message[0]["attempt"], claim)


def idle_launch_keys(job: Job) -> list[tuple[str, str]]:
    """(key, reason) of what was given for a launcher that is not there."""
    why = "the ranks were started by another launcher"
    keys = [name for name in sorted(job.given) if name.startswith("launch.") or name == "supervise.max_restarts"]
    heeded = [name for name in sorted(job.given) if name.startswith("supervise.") and name not in keys]
    return [(name, why) for name in keys] + [(name, f"{why}; paceline watch heeds it") for name in heeded]


def _claim(arguments: argparse.Namespace, job: Job, world_size: int) -> Claim:
    wish = Wish(arguments.resume, arguments.init_from)
    out = arguments.out or job.config.run.out
    weights = find_weights(wish.init_from, out) if wish.init_from is not None else None
    identity = job.identity(weights.digest if weights is not None else None)
    root = Path(arguments.out or job.default_root(identity))
    argv = [os.path.basename(sys.executable), "-m", "paceline.worker", *sys.argv[1:]]
    description = job.describe_run(argv, identity)
    origin = plan_origin(wish, root, bool(out), description, weights)
    claim = claim_run(root, description, world_size, origin)
    if isinstance(claim, AlreadyFinished):
        raise UsageError(
            f"this run has already finished ({claim.run.reason})", str(root), "choose another directory with --out DIR"
        )
    with storage_errors(claim.layout.root):
        write_json(claim.layout.environment, describe_environment(os.environ))
    return claim


@contextlib.contextmanager
def show_progress(claim: Claim, output: Output) -> Iterator[None]:
    """Plain lines on the terminal the ranks were started from, by a thread beside the training."""
    progress = Progress(claim.layout, claim.attempt, _console(output), claim.pulses)
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(0.5):
            progress.poll()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)
        progress.poll()
        progress.close()


def conclude(claim: Claim, ending: Ending, output: Output) -> int:
    """Writes how the run ended, shows its results, and gives the exit code."""
    exit_code = EXIT_CODES.get(ending.reason, 0)
    claim.finish(ending.state, ending.reason, ending.step, exit_code)
    claim.release()
    console = _console(output)
    console.print(results_table(read_run(claim.layout.root), ending.state))
    console.print(f"run: {claim.layout.root}", soft_wrap=True, highlight=False)
    return exit_code


def _console(output: Output) -> Console:
    return Console(file=output.console, force_terminal=False)
