"""The run directory of this worker, and what the launcher wrote into it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.files import read_json
from paceline.recipes.job import Job
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import load_run_file

if TYPE_CHECKING:
    from paceline.launch.claim import Claim


@dataclass(frozen=True)
class Place:
    """Where this attempt writes."""

    layout: RunLayout
    attempt: int
    claim: Claim | None = None
    """held here, by rank 0, when there is no launcher of ours"""


def take_claimed(arguments: argparse.Namespace, job: Job) -> tuple[Place, Job]:
    """The directory that the launcher has claimed, and the job with the origins that the user's own words gave it."""
    run = load_run_file(arguments.out) if arguments.out is not None else None
    if run is None or run.state != "running" or run.attempts[-1].attempt != arguments.attempt:
        raise UsageError(
            "--attempt is how `paceline train` tells its workers that it has claimed --out; it has not",
            f"--attempt {arguments.attempt} --out {arguments.out}",
            "leave --attempt out",
        )
    layout = RunLayout(arguments.out.absolute())
    return Place(layout, arguments.attempt), replace(job, origins=read_json(layout.origins))
