"""What a trial showed: pure, from what its run directory says.

judge_trial(Seen(exit_code=5, …))    -> Verdict("stalled", "rank 1 … stands still in data of step 12", samples_per_s=None)
find_symptom(["stall"])              -> "deadlock"
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.telemetry.numbers import is_finite

_REFUSED = (2, 3)
"""exit codes of a `paceline train` that did not take the command"""
_SYMPTOM_OF_STATUS = {"stalled": "deadlock", "out_of_memory": "out_of_memory", "diverged": "instability"}
_SHOWN_BY = {
    "deadlock": ("stalled", "failed"),
    "out_of_memory": ("out_of_memory",),
    "instability": ("diverged",),
}
"""symptom -> what a trial is that shows it; low_throughput shows in a healthy one"""
_SYMPTOM_OF_KIND = {
    "deadlock": ("stall", "stopped", "dead_rank", "dead_host"),
    "out_of_memory": ("out_of_memory",),
    "instability": ("not_finite", "loss_spike", "gradient_exploding", "gradient_zero", "loss_flat", "desync"),
    "low_throughput": (
        *("slow", "straggler", "slow_host", "throttled", "data_bound", "communication_bound", "host_bound"),
        "throughput_decay",
    ),
}
_COLLECTIVE_WORDS = (
    "reduction",
    "marked as ready",
    "marked ready",
    "collective",
    "nccl",
    "gloo",
    "allreduce",
    "timed out",
)
"""of an error that comes from ranks that did not do the same"""
_STILL = ("stall", "stopped", "dead_rank", "dead_host")
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
_GROWN = 1.2
"""a loss that ended this much above where it began has diverged"""


@dataclass(frozen=True)
class Seen:
    """A trial that has ended, as plain data."""

    exit_code: int | None
    timed_out: bool = False
    is_bounded: bool = True
    """it ends at a step; a script whose steps nobody sees runs until its time is over"""
    events: Sequence[Mapping[str, Any]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    """of metrics.csv"""
    level: float | None = None
    """the loss before the trial, where the run knows one"""
    tail: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """What became of it."""

    status: str
    """healthy, stalled, out_of_memory, diverged, failed; refused: it says nothing about the training"""
    what: str = ""
    samples_per_s: float | None = None
    last_step: int | None = None


def judge_trial(seen: Seen) -> Verdict:
    """Healthy is what came to its end, or to that of its time where it has none, with a loss that did not run away."""
    pace, last = measure_pace(seen.rows), max((int(row["step"]) for row in seen.rows), default=None)
    failures = [event for event in seen.events if event.get("kind") == "failure" and not event.get("secondary")]
    incidents = [event["finding"] for event in seen.events if event.get("kind") == "incident" and event.get("finding")]
    if failures:
        error, what = str(failures[0].get("error", "")), _what(failures[0])
        status = {"OutOfMemoryError": "out_of_memory", "NonFiniteError": "diverged", "DesyncError": "diverged"}.get(
            error
        )
        return Verdict(status or "failed", what, pace, last)
    still = [finding for finding in incidents if finding.get("kind") in _STILL]
    if still and seen.exit_code != 0:
        return Verdict("stalled", str(still[-1].get("what", "")), pace, last)
    if seen.timed_out and seen.is_bounded:
        return Verdict("stalled", "it was not done in time", pace, last)
    if seen.exit_code != 0 and not seen.timed_out:
        status = "refused" if seen.exit_code in _REFUSED else "failed"
        return Verdict(status, _find_error(seen), pace, last)
    why = _find_divergence(seen)
    return Verdict("diverged" if why else "healthy", why, pace, last)


def shows(symptom: str, verdict: Verdict, base: float | None, gain: float) -> bool:
    """Whether the trial has the symptom; `base` is the pace that is too low."""
    if symptom != "low_throughput":
        return verdict.status in _SHOWN_BY[symptom]
    is_fast = base is not None and verdict.samples_per_s is not None and verdict.samples_per_s >= gain * base
    return verdict.status == "healthy" and not is_fast


def symptom_of(verdict: Verdict) -> str | None:
    """What a trial shows, where nobody said what to look for."""
    if verdict.status == "failed" and any(word in verdict.what.lower() for word in _COLLECTIVE_WORDS):
        return "deadlock"
    return _SYMPTOM_OF_STATUS.get(verdict.status)


def find_symptom(kinds: Iterable[str]) -> str | None:
    """The symptom that findings, the most likely cause first, are signs of."""
    for kind in kinds:
        for symptom, signs in _SYMPTOM_OF_KIND.items():
            if kind in signs:
                return symptom
    return None


def measure_pace(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Samples a second, the median of the windows after the first third."""
    rates = [row["samples_per_s"] for row in rows if is_finite(row.get("samples_per_s"))]
    return statistics.median(rates[len(rates) // 3 :]) if rates else None


def _find_divergence(seen: Seen) -> str:
    losses = [row["loss"] for row in seen.rows if isinstance(row.get("loss"), int | float)]
    if any(not math.isfinite(loss) for loss in losses):
        return "the loss is not a number"
    if len(losses) < 4:
        return ""
    quarter = max(1, len(losses) // 4)
    began = seen.level if seen.level is not None else statistics.median(losses[:quarter])
    ended = statistics.median(losses[-quarter:])
    return f"the loss grew from {began:.4g} to {ended:.4g}" if ended > _GROWN * began > 0 else ""


def _find_error(seen: Seen) -> str:
    """The line of the output that names an error, else the last one."""
    errors = [line for line in seen.tail if _ERROR.match(line)]
    return (errors or list(seen.tail)[-1:] or [f"exit code {seen.exit_code}"])[0]


def _what(event: Mapping[str, Any]) -> str:
    problems = event.get("problems")
    first = problems[0] if isinstance(problems, list) and problems else {}
    return str(first.get("what", event.get("error", "")))
