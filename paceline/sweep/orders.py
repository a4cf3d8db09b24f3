"""Trials as the ledger knows them, before they run: with everything they are keyed by.

Orders(sweep).build(assignment, plan, slot)   -> Order(case="bucket_mb=25", round=1, key="9f2c…", …)
"""

from __future__ import annotations

import os

from paceline.sweep.evidence import Assignment
from paceline.sweep.fingerprint import config_digest, trial_key
from paceline.sweep.ledger import Order
from paceline.sweep.outcome import Sweep
from paceline.sweep.trial import Slot
from paceline.sweep.trial_settings import TrialPlan


class Orders:
    """Of one sweep; the data of a case is looked at once."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._data: dict[str, str] = {}

    def build(self, assignment: Assignment, plan: TrialPlan, slot: Slot) -> Order:
        job, surroundings = plan.job, self._sweep.surroundings
        if assignment.case not in self._data:
            self._data[assignment.case] = job.recipe.identify_data(job.config)
        data = self._data[assignment.case]
        return Order(
            case=assignment.case,
            round=assignment.round,
            key=trial_key(job, surroundings, data, plan.span, self._share(assignment.case, slot)),
            config=config_digest(job),
            hardware=surroundings.hardware_digest,
            code=surroundings.code_digest(job),
            data=data,
            steps=plan.span.steps,
            warmup_steps=plan.span.warmup_steps,
        )

    def _share(self, case: str, slot: Slot) -> list[int]:
        """Of the machine: how many trials run side by side, cores, ranks, GPUs."""
        placement = self._sweep.matrix.case(case).placement
        cores = os.sched_getaffinity(0) if slot.cores is None else slot.cores
        num_gpus = len(slot.visible.split(",")) if slot.visible else placement.num_gpus
        return [self._sweep.plan.config.slots, len(cores), placement.world_size, num_gpus]
