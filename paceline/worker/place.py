"""The run directory of this worker: claimed by the launcher before it started us, or by rank 0 for all ranks."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from paceline.config.contradictions import Facts
from paceline.config.dump import dump_config
from paceline.engine.ranks import Ranks
from paceline.errors import PacelineError, RankLostError, UsageError
from paceline.files import read_json, write_json
from paceline.launch.claim import AlreadyFinished, Claim, RunDescription, claim_run
from paceline.launch.hardware import visible_gpus
from paceline.launch.record import describe_environment
from paceline.recipes.job import Job
from paceline.telemetry.layout import RunLayout


@dataclass(frozen=True)
class Place:
    """Where this attempt writes."""

    layout: RunLayout
    attempt: int
    given: frozenset[str]
    """the dotted keys that were not left at their default"""
    claim: Claim | None = None
    """held here, by rank 0, when there is no launcher of ours"""


def take_claimed(arguments: argparse.Namespace) -> Place:
    """The directory that the launcher has claimed; the origins of its configuration lie there."""
    layout = RunLayout(arguments.out.absolute())
    return Place(layout, arguments.attempt, _given(read_json(layout.origins)))


def claim_together(arguments: argparse.Namespace, job: Job, ranks: Ranks) -> Place:
    """Rank 0 claims, all ranks learn where and as which attempt; if it cannot, all of them end."""
    claim: Claim | None = None
    failure: PacelineError | None = None
    message: list[tuple[str, int] | None] = [None]
    if ranks.is_first:
        try:
            job.check(Facts(ranks.world_size, visible_gpus(job.config.launch.gpus)))
            claim = _claim(arguments, job, ranks.world_size)
            message = [(str(claim.layout.root), claim.attempt)]
        except PacelineError as error:
            failure = error
    if ranks.has_group:
        dist.broadcast_object_list(message, src=0)
    if failure is not None:
        raise failure
    if message[0] is None:
        raise RankLostError("rank 0 could not take the run directory")
    root, attempt = message[0]
    return Place(RunLayout(Path(root)), attempt, _given(job.origins), claim)


def _claim(arguments: argparse.Namespace, job: Job, world_size: int) -> Claim:
    identity = job.identity()
    root = arguments.out or job.default_root(identity)
    argv = [os.path.basename(sys.executable), "-m", "paceline.worker", *sys.argv[1:]]
    description = RunDescription(
        job.recipe.name, job.config.run.name, argv, dump_config(job.config), job.origins, identity
    )
    claim = claim_run(Path(root), description, world_size)
    if isinstance(claim, AlreadyFinished):
        raise UsageError(
            f"this run has already finished ({claim.run.reason})", str(root), "choose another directory with --out DIR"
        )
    write_json(claim.layout.environment, describe_environment(os.environ))
    return claim


def _given(origins: dict[str, str]) -> frozenset[str]:
    return frozenset(name for name, origin in origins.items() if origin != "default")
