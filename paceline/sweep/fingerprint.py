"""What makes a trial comparable with another: its complete configuration, the hardware, the code, the data, its length.

    describe_surroundings(jobs)   -> Surroundings(hardware={"cpu": …, "gpus": […]}, code={"digest": "4be1…", "versions": {…}}, …)
    trial_key(job, surroundings, data, span, share)   -> 64 hex digits

Names of hosts, paths of runs and the time of day are not among them. Code counts by its content: what trains, the recipe's own package,
and a foreign script's files (script.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paceline
from paceline.errors import UsageError
from paceline.files import sha256_of
from paceline.launch.record import describe_environment
from paceline.recipes.code import find_package
from paceline.recipes.job import Job
from paceline.recipes.registry import BUILT_IN
from paceline.sweep.pace import TrialSpan
from paceline.sweep.plan import COMMAND
from paceline.sweep.script import script_files
from paceline.telemetry.software import digest_code

_TRAINING = ("config", "engine", "launch", "recipes", "telemetry", "worker", "workload", "files.py", "cores.py")
"""The rooms of the package that can change what a trial measures."""
_APART = ("run.out", "run.name")
_CODE = (".py", ".sh")


@dataclass(frozen=True)
class Surroundings:
    """Where and with what trials run, as it was at the start of a sweep."""

    machine: Mapping[str, Any]
    """all that env.json says, for people"""
    hardware: Mapping[str, Any]
    code: Mapping[str, Any]
    """what all cases share: versions, and the content of the package"""
    files: Mapping[Path, str]
    """content of what single cases have besides: a script's files, a recipe's package"""

    @property
    def hardware_digest(self) -> str:
        return digest_of(self.hardware)

    def code_digest(self, job: Job) -> str:
        """Of all code of one case; UsageError where it is not what it was at the start."""
        places = sorted(_own_places(job))
        for place in places:
            if _content(place) != self.files.get(place):
                do = "start the same command again: what was measured with the old one is not reused"
                raise UsageError("a file of the script was changed while the sweep ran", str(place), do)
        return digest_of([self.code, [self.files[place] for place in places]])


def describe_surroundings(jobs: Iterable[Job]) -> Surroundings:
    """This machine and this code; the jobs are those of all cases."""
    machine = describe_environment(os.environ)
    hardware = {
        "cpu": machine["cpu"],
        "memory_gib": machine["memory_gib"],
        "gpus": [{"name": gpu["name"], "memory_gib": gpu["memory_gib"]} for gpu in machine["gpus"]],
        "driver": machine["driver"],
    }
    package = Path(paceline.__file__).parent
    code = {"versions": machine["versions"], "digest": digest_of([_content(package / name) for name in _TRAINING])}
    places = {place for job in jobs for place in _own_places(job)}
    return Surroundings(machine, hardware, code, {place: _content(place) for place in places})


def own_digest(job: Job) -> str:
    """Of the code that is this job's alone, a script's or another package's recipe; empty: there is none.

    Of the files that a command names only programs count here: data is told by its own digest, and a log is another after every run.
    """
    places = sorted(place for place in _own_places(job) if place.is_dir() or place.suffix in _CODE)
    return digest_of([_content(place) for place in places])[:16] if places else ""


def config_digest(job: Job) -> str:
    """Of every key that can change a trial."""
    values = job.config.model_dump(mode="json")
    for name in _APART:
        section, _, word = name.partition(".")
        del values[section][word]
    return digest_of(values)


def trial_key(job: Job, surroundings: Surroundings, data: str, span: TrialSpan, share: Sequence[int]) -> str:
    """`share` is what the trial has of the machine. Not the objective: a record holds what any of them reads."""
    where = [surroundings.hardware_digest, list(share), surroundings.code_digest(job)]
    return digest_of([config_digest(job), *where, data, span.steps, span.warmup_steps, span.window])


def digest_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _own_places(job: Job) -> Iterable[Path]:
    """Files and directories whose content is the code of this job alone."""
    if job.recipe.name == COMMAND and job.recipe.foreign is not None:
        yield from script_files(job.recipe.foreign.argv(job.config, Path(), 1))
    elif job.recipe.name not in BUILT_IN:
        yield from find_package(job.recipe)


def _content(place: Path) -> str:
    # A file that a script names may be data, and too large to be held.
    return sha256_of(place) if place.is_file() else digest_code([place])
