"""Begins a run of a foreign loop: finds the rank, takes the directory, writes what is known before the first step.

run = start_run("runs/mine", config=vars(arguments), start_step=step_of_my_checkpoint, total_steps=10_000)
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection
from typing import Any

from paceline.errors import StorageError, UsageError
from paceline.files import storage_error
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import read_run
from paceline.telemetry.sdk.arguments import check_directory, check_seconds, check_whole, check_word
from paceline.telemetry.sdk.beginning import Beginning
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
    start_step = check_whole("start_step", start_step)
    start_samples = None if start_samples is None else check_whole("start_samples", start_samples)
    total_steps = None if total_steps is None else check_whole("total_steps", total_steps)
    log_every = check_whole("log_every", log_every, least=1)
    check_seconds("heartbeat_s", heartbeat_s)
    check_word("name", name)
    check_word("unit", unit)
    settings = plain_settings(config)
    check_may_change(may_change, settings)
    place = find_rank(rank, world_size)
    layout = RunLayout(check_directory(out))
    claim, is_writing = None, True
    if place.is_first:
        frame = sys._getframe(1)
        origin = f"start_run at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        claim = _claim(layout, Description(name, settings, may_change, origin), place)
        is_writing = claim is not None
    earlier = _earlier_rows(layout, claim) if claim is not None else {}
    counted = start_samples
    if counted is None:
        counted = 0 if start_step == 0 else earlier.get(start_step)
    run = TrackedRun(
        layout,
        place,
        claim,
        is_writing=is_writing,
        start_step=start_step,
        start_samples=counted,
        log_every=log_every,
        heartbeat_s=heartbeat_s,
    )
    if claim is not None and run._link is not None:
        _write_start(run, claim, place)
        plan = functools.partial(_write_plan, run, place, total_steps, unit)
        if start_step == 0 and earlier:
            run._begin = Beginning(earlier, start_samples, functools.partial(plan, "its first step says so"), run._say)
        else:
            plan("start_step says so", start_step)
    elif claim is None:  # another rank does not know what came before
        run._begin = lambda start: counted if start == 0 else start_samples
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


def _write_start(run: TrackedRun, claim: SdkClaim, rank: Rank) -> None:
    assert run._link is not None
    write = run._link.scribe.write_event
    write("start", command=claim.run.attempts[-1].argv, world_size=rank.world_size, environment=[])
    for note in claim.notes:
        write("note", what=note)
    changed = claim.run.attempts[-1].changed
    if changed:
        write("note", what=f"settings changed since attempt {claim.attempt - 1}", changed=changed)
    if rank.world_size > 1:
        how = "a foreign loop's ranks are not asked; global_samples= gives it exactly"
        effective = f"those of rank 0 × {rank.world_size}"
        write("choice", about="samples", requested="of all ranks", effective=effective, reason=how)


def _write_plan(run: TrackedRun, rank: Rank, total_steps: int | None, unit: str, why: str, start_step: int) -> None:
    assert run._link is not None
    write = run._link.scribe.write_event
    if start_step:
        write("note", what=f"goes on from step {start_step:,}", why=why)
    unknown = ("num_samples", "horizon", "accumulate", "slices", "steps_per_epoch", "total_samples", "objective")
    plan = dict.fromkeys(unknown) | {"start_step": start_step, "total_steps": total_steps, "unit": unit}
    write("plan", world_size=rank.world_size, **plan)


def _earlier_rows(layout: RunLayout, claim: SdkClaim) -> dict[int, int | None]:
    """Samples by the step at which a row of earlier attempts ends, as far as it counts."""
    if all(attempt.step == 0 for attempt in claim.run.attempts[:-1]):  # None: it was killed, who knows where
        return {}
    try:
        return {row["step"]: row["samples"] for row in read_run(layout.root).metrics}
    except OSError as error:
        LOG.warning("what this run had reached cannot be read: %s", error)
        return {}
