"""What a sweep has cost so far, in device-seconds, and what the full grid would, by what was seen."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paceline.sweep.ledger import Row
from paceline.sweep.measured import Measured


def count_costs(
    rows: Sequence[Row],
    measured: Mapping[int, Measured],
    counted: Collection[int],
    of_case: Mapping[str, Sequence[Measured]],
    steps: int,
    repeats: int,
) -> dict[str, Any]:
    """`counted` are the rows whose results count; `of_case` their trials; `steps` and `repeats` those of the full grid."""
    counting = [trial for number, trial in measured.items() if number in counted]
    others = [trial for number, trial in measured.items() if number not in counted]
    return {
        "num_trials": len(rows),
        "num_interrupted": sum(row.status == "interrupted" for row in rows),
        "device_s": sum(trial.device_s for trial in counting),
        "other_device_s": sum(trial.device_s for trial in others),
        "startup_s": sum(trial.startup_s for trial in counting),
        "wall_s": sum(row.ended - row.began for row in rows if row.ended is not None),
        "full_grid_device_s": _grid_cost(of_case, steps, repeats),
        "full_grid_repeats": repeats,
    }


def _grid_cost(of_case: Mapping[str, Sequence[Measured]], steps: int, repeats: int) -> float | None:
    """What all cases, each so often and for so many steps, would cost, by the pace that was seen."""
    per_trial = []
    for trials in of_case.values():
        whole = [
            trial.startup_s / trial.duration_s * trial.device_s
            + (1 - trial.startup_s / trial.duration_s) * trial.device_s * steps / trial.counted_steps
            for trial in trials
            if trial.counted_steps and trial.duration_s > 0
        ]
        if whole:
            per_trial.append(statistics.fmean(whole))
    return statistics.fmean(per_trial) * len(of_case) * repeats if per_trial else None
