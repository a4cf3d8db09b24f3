"""What is checked: a configuration, the ranks and GPUs it gets on this machine, and the directory it will write into.

subject, checks = build_subject(job)     # `checks` say what is already wrong with it: a GPU that is not there, a missing data file
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.describe import describe
from paceline.config.loading import resolve
from paceline.config.sections import RunConfig
from paceline.config.source import Entry, Layer
from paceline.config.toggles import check_toggles
from paceline.errors import UsageError
from paceline.launch.environment import worker_environment
from paceline.launch.placement import Placement, place_ranks, wished_placement
from paceline.preflight.check import Check, from_problems
from paceline.recipes.job import Flags, Job

_WITHOUT_JOB = Path("runs")


@dataclass(frozen=True)
class Subject:
    """Everything the checks look at."""

    config: RunConfig
    placement: Placement
    root: Path
    """the run directory, absolute; where runs live if there is no job"""
    environment: Mapping[str, str]
    """of the workers"""
    origins: Mapping[str, str]
    """where each key's value comes from"""
    job: Job | None = None
    identity: Mapping[str, Any] | None = None
    """None: there is no job, or its data cannot be read"""
    sizes: Mapping[str, Any] | None = None
    """what a worker counted: num_parameters, num_train; None where nobody has asked"""

    @property
    def world_size(self) -> int:
        return self.placement.world_size

    @property
    def num_gpus(self) -> int:
        return self.placement.num_gpus

    @property
    def num_loaders(self) -> int:
        """Loader processes of all ranks together, as far as somebody asked for them: auto takes what the machine has."""
        asked = self.config.data.num_workers
        return self.world_size * asked if isinstance(asked, int) else 0

    @property
    def has_group(self) -> bool:
        """Whether the ranks will have a process group; see `engine.ranks.choose_backend`."""
        return self.world_size > 1 or self.config.parallel.backend != "auto"


def build_subject(job: Job | None, flags: Flags | None = None) -> tuple[Subject, list[Check]]:
    """The subject, and what stands against it; without a job the machine alone, with the ranks that `flags` ask for."""
    config, origins = (job.config, job.origins) if job is not None else _machine_config(flags)
    checks: list[Check] = []
    try:
        placement = place_ranks(config.launch, origins["launch.gpus"])
    except UsageError as error:
        checks += from_problems("GPUs asked for", error.problems)
        placement = wished_placement(config.launch)
    identity, root = None, Path(config.run.out or _WITHOUT_JOB)
    if job is not None:
        try:
            identity = job.identity()
            root = job.default_root(identity)
        except UsageError as error:
            checks += from_problems("data", error.problems)
    environment = worker_environment(
        config.launch, placement.world_size, placement.num_gpus, os.environ, visible=placement.visible
    )
    return Subject(config, placement, root.absolute(), environment.apply(os.environ), origins, job, identity), checks


def _machine_config(flags: Flags | None) -> tuple[RunConfig, dict[str, str]]:
    base = Layer({"recipe": Entry("", "preflight without a configuration")})
    toggles = check_toggles(os.environ, describe(RunConfig))
    resolved = resolve(RunConfig, base, (), flags, toggles)
    return resolved.config, resolved.origins
