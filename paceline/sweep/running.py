"""A trial under way, and the lines about it: how far it is, what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from paceline.launch.duration import show_duration
from paceline.sweep.evidence import ENDED, Assignment
from paceline.sweep.ledger import Row
from paceline.sweep.measured import Measured
from paceline.sweep.outcome import Sweep
from paceline.sweep.trial import Slot, Trial
from paceline.sweep.trial_settings import TrialPlan
from paceline.telemetry.amount import show_amount


@dataclass
class Running:
    """A trial under way."""

    ordinal: str
    """which trial of how many: `7/36`"""
    row: Row
    plan: TrialPlan
    assignment: Assignment
    trial: Trial
    slot: Slot
    num_devices: int
    said_at: float
    verdict: str | None = None
    """what ended it, where that was not itself: timeout, diverged, interrupted"""


def describe_ordinal(number: int, repeats: int, sweep: Sweep) -> str:
    """Which trial it is, of how many as far as that is known; `repeats` are those of the full grid."""
    settings, total = sweep.settings, len(sweep.matrix.cases) * repeats
    if sweep.plan.config.search is not None:
        return f"{number}"
    if settings.repeats is None:
        return f"{number} of about {total}" if not settings.racing else f"{number}, the full grid has about {total}"
    return f"{number} of at most {total}" if settings.racing else f"{number}/{total}"


def describe_progress(running: Running, unit: str) -> str:
    """`trial 7/36  bucket_mb=25  step 120/300  1,030 samples/s  0:12 left`."""
    trial, total = running.trial, running.plan.span.total
    words = [f"trial {running.ordinal}", running.assignment.case, f"step {trial.step or 0:,}/{total:,}"]
    if trial.samples_per_s:
        words.append(f"{show_amount(trial.samples_per_s)} {unit}/s")
    if trial.step and trial.first_step_at:
        left_s = (time.time() - trial.first_step_at) / trial.step * (total - trial.step)
        words.append(f"{show_duration(left_s)} left")
    else:
        words.append(f"starting, {show_duration(time.time() - trial.began)}")
    return "  ".join(words)


def describe_result(running: Running, measured: Measured, unit: str, objective: str) -> str:
    if measured.status not in ENDED:
        return f"trial {running.ordinal} {measured.status}: {running.assignment.case}: {measured.reason}"
    pace = f"{show_amount(measured.pace)} {measured.unit or unit}/s" if measured.pace else ""
    metric = f"{objective} {measured.metric:.4g}" if measured.metric is not None else ""
    words = "  ".join(filter(None, [pace, metric, f"{measured.duration_s:,.1f} s"]))
    return f"trial {running.ordinal} {measured.status}: {words}"
