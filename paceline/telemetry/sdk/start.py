"""Begins a run of a foreign loop: finds the rank, takes the directory, writes what is known before the first step.

run = start_run("runs/mine", config=vars(arguments), start_step=step_of_my_checkpoint, total_steps=10_000)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from paceline.errors import StorageError, UsageError
from paceline.files import storage_error
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import read_run
from paceline.telemetry.sdk.claim import Description, SdkClaim, claim_run
from paceline.telemetry.sdk.ranks import Rank, find_rank
from paceline.telemetry.sdk.run import TrackedRun
from paceline.telemetry.sdk.scribe import LOG
from paceline.telemetry.sdk.settings import check_may_change, plain_settings


def start_run(
    out: str | os.PathLike[str],
    config: Any = None,
    *,
    name: str = "",
    may_change: Collection[str] = (),
    start_step: int = 0,
    start_samples: int | None = None,
    total_steps: int | None = None,
    unit: str = "",
    log_every: int = 10,
    heartbeat_s: float = 5.0,
    rank: int | None = None,
    world_size: int | None = None,
) -> TrackedRun:
    """Takes the run directory `out` for an attempt; every rank calls it with the same arguments.

    config: what makes this run this run, a dictionary (nested is fine), dataclass or namespace. A directory with another one is
    refused, but for the keys in `may_change`. start_step, start_samples: where an attempt goes on that resumes; the first step is
    start_step + 1. unit: what `step(units=…)` counts, such as tokens. rank, world_size: where the environment does not say them.
    """
    _check_numbers(start_step=start_step, start_samples=start_samples, total_steps=total_steps, heartbeat_s=heartbeat_s)
    if log_every < 1:
        raise UsageError(f"log_every={log_every} must be at least 1", "start_run", "give a number of steps")
    settings = plain_settings(config)
    check_may_change(may_change, settings)
    place = find_rank(rank, world_size)
    layout = RunLayout(Path(out).absolute())
    claim, is_writing = None, True
    if place.is_first:
        frame = sys._getframe(1)
        origin = f"start_run at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        claim = _claim(layout, Description(name, settings, may_change, origin), place)
        is_writing = claim is not None
    if start_step == 0 and start_samples is None:
        start_samples = 0
    elif start_samples is None and claim is not None:
        start_samples = _samples_at(layout, start_step)
    run = TrackedRun(
        layout,
        place,
        claim,
        is_writing=is_writing,
        start_step=start_step,
        start_samples=start_samples,
        log_every=log_every,
        heartbeat_s=heartbeat_s,
    )
    if claim is not None and run._link is not None:
        _write_start(run, claim, place, start_step, total_steps, unit)
    return run


def _claim(layout: RunLayout, description: Description, rank: Rank) -> SdkClaim | None:
    """None where there is no room: that is no reason not to train."""
    try:
        return claim_run(layout, description, rank)
    except OSError as error:
        typed = storage_error(error, layout.root)
        problem = typed.problems[0]
        if isinstance(typed, StorageError):
            LOG.warning("nothing is written about this run: %s (%s)", problem.what, problem.where)
            return None
        raise UsageError(problem.what, problem.where, "give start_run another directory") from error


def _write_start(
    run: TrackedRun, claim: SdkClaim, rank: Rank, start_step: int, total_steps: int | None, unit: str
) -> None:
    assert run._link is not None
    write = run._link.scribe.write_event
    write("start", command=claim.run.attempts[-1].argv, world_size=rank.world_size, environment=[])
    for note in claim.notes:
        write("note", what=note)
    changed = claim.run.attempts[-1].changed
    if changed:
        write("note", what=f"settings changed since attempt {claim.attempt - 1}", changed=changed)
    if start_step:
        write("note", what=f"goes on from step {start_step:,}", why="start_step says so")
    unknown = ("num_samples", "horizon", "accumulate", "slices", "steps_per_epoch", "total_samples", "objective")
    plan = dict.fromkeys(unknown) | {"start_step": start_step, "total_steps": total_steps, "unit": unit}
    write("plan", world_size=rank.world_size, **plan)
    if rank.world_size > 1:
        how = "a foreign loop's ranks are not asked; global_samples= gives it exactly"
        effective = f"those of rank 0 × {rank.world_size}"
        write("choice", about="samples", requested="of all ranks", effective=effective, reason=how)


def _samples_at(layout: RunLayout, step: int) -> int | None:
    """How many samples earlier attempts had counted at the end of that step; None where no row ends there."""
    return next((row["samples"] for row in read_run(layout.root).metrics if row["step"] == step), None)


def _check_numbers(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 0:
            raise UsageError(f"{name}={value} must not be negative", "start_run", f"leave {name} out, or give another")
