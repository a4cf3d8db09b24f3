"""The run directory of this worker, and what the launcher wrote into it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.files import read_json
from paceline.recipes.job import Job
from paceline.telemetry.layout import RunLayout

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
    layout = RunLayout(arguments.out.absolute())
    return Place(layout, arguments.attempt), replace(job, origins=read_json(layout.origins))
