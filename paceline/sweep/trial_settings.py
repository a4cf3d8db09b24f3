"""What makes a case a trial: its length, no evaluations and no checkpoints unless the plan wants them, a seed.

plan_trial(case, plan, Assignment("bucket_mb=25", round=2, steps=280), reference_batch=256)
-> TrialPlan(job=…, settings={"train.max_steps": 300, "checkpoint.enabled": False, …}, span=…)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config.describe import describe
from paceline.config.source import show
from paceline.recipes.job import Job, load_job
from paceline.sweep.evidence import Assignment
from paceline.sweep.matrix import Case, batch_of, given_of
from paceline.sweep.pace import TrialSpan
from paceline.sweep.plan import COMMAND, STEP_TIME, THROUGHPUT, Plan

_LOG_EVERY = 10
_SHORT = {
    "evaluate.every_steps": None,
    "evaluate.every_epochs": None,
    "checkpoint.enabled": False,
    "telemetry.tensorboard": False,
}
"""Of every trial; `paceline train` evaluates once at the end whatever is said."""


@dataclass(frozen=True)
class TrialPlan:
    """One trial, before it has a place."""

    job: Job
    words: tuple[str, ...]
    """`key=value` for `paceline train`, after the recipe"""
    settings: dict[str, Any]
    """what was given beside the case, because it is a trial"""
    span: TrialSpan
    """in the steps of this case: those of the plan count for the reference batch where an objective needs equal samples"""


def plan_trial(case: Case, plan: Plan, assignment: Assignment, reference_batch: int | None) -> TrialPlan:
    """The trial that the race asks for; `reference_batch` is the baseline's."""
    config = plan.config
    span = TrialSpan(config.warmup_steps, assignment.steps, config.window, config.objective)
    batch = batch_of(case)
    if config.objective not in (THROUGHPUT, STEP_TIME) and batch and reference_batch and batch != reference_batch:
        # A metric is compared at equal samples: half the batch takes twice the steps.
        total = max(config.warmup_steps + 1, round(span.total * reference_batch / batch))
        span = TrialSpan(config.warmup_steps, total - config.warmup_steps, config.window, config.objective)
    given = given_of(plan, case.values)
    settings = {name: value for name, value in _settings(case, plan, assignment, span).items() if name not in given}
    flags = given | {name: (value, "a trial of a sweep") for name, value in settings.items()}
    job = load_job(config.recipe, (), flags)
    words = tuple(f"{name}={show(value)}" for name, (value, _) in flags.items())
    return TrialPlan(job, words, settings, span)


def _settings(case: Case, plan: Plan, assignment: Assignment, span: TrialSpan) -> Mapping[str, Any]:
    log_every = math.gcd(span.warmup_steps, span.window, _LOG_EVERY) if span.warmup_steps else 1
    # Paces are compared beside losses on the very same samples; a metric's repeats must not be the same training over again.
    is_pace = plan.config.objective in (THROUGHPUT, STEP_TIME)
    seed = case.job.config.run.seed + (0 if is_pace else assignment.round - 1)
    common: dict[str, Any] = {
        "train.max_steps": span.total,
        "telemetry.log_every": min(log_every, span.total),
        "run.seed": seed,
    }
    config = plan.config
    if config.recipe == COMMAND:
        return common
    common |= _SHORT | {"train.epochs": None}
    schedule = case.job.config.train.schedule
    if schedule.kind in ("linear", "cosine") or schedule.warmup_steps >= span.total:
        # The same for short and whole trials, or their losses could not be compared at as many samples.
        whole = max(span.total, config.steps) if is_pace else span.total
        common["train.schedule.horizon"] = max(whole, schedule.warmup_steps + 1)
    if case.placement.world_size > 1:
        common["telemetry.timing_ranks"] = "all"
    if is_pace:
        common["evaluate.max_samples"] = 1
    known = describe(type(case.job.config))
    return {name: value for name, value in common.items() if name in known}
