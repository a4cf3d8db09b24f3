"""Trials for tests: as plain as they can be, with noise that is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from paceline.sweep.evidence import Assignment, RaceSettings, TrialResult
from paceline.sweep.racer import Racer

STEPS = 100
SETTINGS = RaceSettings(steps=STEPS, warmup_steps=10, window=10)


def trial(case: str, rate: float, round: int = 1, steps: int = STEPS, **more: object) -> TrialResult:
    """One that ended well: a start costs as much as 50 steps."""
    values = {
        "status": "ok",
        "samples_per_s": rate,
        "windows": (rate,) * (steps // SETTINGS.window),
        "losses": tuple((step * 64, 4.0) for step in range(10, steps + 1, 10)),
        "device_s": 5.0 + steps / 10,
        "startup_s": 5.0,
        "steps": steps,
    }
    return TrialResult(case, round, **{**values, **more})  # type: ignore[arg-type]


def machine(rates: Mapping[str, float], noise: float, seed: int) -> Callable[[Assignment], TrialResult]:
    """Runs assignments: each round has a pace of its own, each trial its noise."""
    generator = random.Random(seed)
    rounds: dict[int, float] = {}

    def run(assignment: Assignment) -> TrialResult:
        pace = rounds.setdefault(assignment.round, generator.gauss(1, 0.05))
        rate = rates[assignment.case] * pace * generator.gauss(1, noise)
        return trial(assignment.case, rate, assignment.round, assignment.steps)

    return run


def finish(racer: Racer, run: Callable[[Assignment], TrialResult]) -> Racer:
    while (assignment := racer.next()) is not None:
        racer.observe(run(assignment))
    assert racer.is_decided
    return racer
