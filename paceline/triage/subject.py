"""What is triaged: a configuration, or a run with its configuration, its newest whole checkpoint, and its pace before the symptom.

subject = find_subject("runs/mine", [], {})    -> Subject(target="…/runs/mine/config.yaml", checkpoint=…/step_00000400, …)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.describe import describe, value_at
from paceline.errors import UsageError
from paceline.launch.placement import Placement, place_ranks
from paceline.recipes.job import Flags, Job, load_job
from paceline.telemetry.checkpoints import list_checkpoints, newest_whole
from paceline.telemetry.reader import Run, read_run
from paceline.telemetry.run_file import load_run_file

_BEYOND = 20
"""steps behind the one at which a run stood still"""
_MOST_STEPS = 2000


@dataclass(frozen=True)
class Subject:
    """Somebody's run or configuration."""

    target: str
    """what `paceline train` is given"""
    overrides: tuple[str, ...]
    job: Job
    placement: Placement
    run: Run | None = None
    checkpoint: Path | None = None
    start_step: int = 0
    """of a trial: the checkpoint's"""

    @property
    def root(self) -> Path | None:
        return None if self.run is None else self.run.layout.root

    @property
    def values(self) -> dict[str, Any]:
        """Every key, and what follows from them and from the machine: what conditions and formulas may name."""
        config, world_size = self.job.config, self.placement.world_size
        facts: dict[str, Any] = {"world_size": world_size, "num_gpus": self.placement.num_gpus}
        known = describe(type(config))
        if "train.global_batch" in known:
            per_rank = math.ceil(config.train.global_batch / world_size)
            accumulate = config.train.accumulate or 1
            facts["micro_batch"] = min(config.train.micro_batch or per_rank, math.ceil(per_rank / accumulate))
        values = {name: value_at(config, name) for name in known}
        for name, value in list(values.items()):
            if isinstance(value, dict):  # launch.env.NCCL_DEBUG, command.params.workers
                values |= {f"{name}.{word}": inner for word, inner in value.items()}
        return values | facts

    @property
    def failed_step(self) -> int | None:
        """Where the run was when it ended."""
        attempts = self.run.run.attempts if self.run is not None else []
        steps = [attempt.step for attempt in attempts if attempt.step is not None]
        rows = [int(row["step"]) for row in self.run.metrics] if self.run is not None else []
        return max([*steps, *rows], default=None)

    def trial_steps(self, asked: int | None, default: int) -> int:
        """How many steps a trial has: beyond the step at which the run broke, or what the ladder says."""
        if asked is not None:
            return asked
        if self.failed_step is None:
            return default
        return min(max(default, self.failed_step - self.start_step + _BEYOND), _MOST_STEPS)

    def reference(self) -> float | None:
        """Samples a second of the run before its symptom: the median of the faster half of its windows."""
        if self.run is None:
            return None
        rates = sorted(row["samples_per_s"] for row in self.run.timed if isinstance(row.get("samples_per_s"), float))
        return statistics.median(rates[len(rates) // 2 :]) if rates else None


def find_subject(target: str, overrides: Sequence[str], flags: Flags) -> Subject:
    """A directory is a run; anything else is what `paceline train` takes."""
    path = Path(target)
    if path.name == "run.json" and path.is_file():
        raise UsageError("this is a run's run.json", target, f"name its directory: paceline triage {path.parent}")
    if not path.is_dir():
        job = load_job(target, overrides, flags)
        return Subject(target, job.overrides, job, place_ranks(job.config.launch, job.origins["launch.gpus"]))
    run_file = load_run_file(path)
    if run_file is None:
        raise UsageError("not a run directory (it has no run.json)", target, "name a run, a recipe or a YAML file")
    run = read_run(path)
    config = run.layout.root / "config.yaml"
    if not config.is_file():
        do = "triage the script's configuration instead: paceline triage CONFIG"
        raise UsageError("this run has no configuration of Paceline's", str(config), do)
    given = dict(flags)
    if run_file.attempts and "launch.nproc" not in given:
        # `auto` meant the machine that it ran on.
        given["launch.nproc"] = (run_file.attempts[-1].world_size, "as the run had it")
    job = load_job(str(config), overrides, given)
    checkpoint, _ = newest_whole(list_checkpoints(run.layout.checkpoints))
    return Subject(
        str(config),
        job.overrides,
        job,
        place_ranks(job.config.launch, job.origins["launch.gpus"]),
        run,
        None if checkpoint is None else checkpoint.path,
        0 if checkpoint is None else checkpoint.step,
    )


def same_values(subject: Subject, settings: Mapping[str, Any]) -> bool:
    """Whether the configuration has all of these already."""
    values = subject.values
    return all(name in values and values[name] == value for name, value in settings.items())
