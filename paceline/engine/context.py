"""What every part of the engine in one worker process shares: the configuration, the ranks, and where to write."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.config.arithmetic import BatchPlan, plan_batches
from paceline.config.sections import RunConfig
from paceline.engine.ranks import Ranks
from paceline.engine.stop import StopWatch
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.run_file import RunFile


@dataclass(frozen=True)
class Context:
    """One worker of one attempt of one run."""

    config: RunConfig
    given: Collection[str]
    """the dotted keys that were not left at their default"""
    idle: Sequence[tuple[str, str]]
    """(key, reason) of those among them that change nothing on any machine"""
    ranks: Ranks
    layout: RunLayout
    run: RunFile
    attempt: int
    events: EventLog
    watch: StopWatch
    pulse: PulseWriter

    @property
    def software(self) -> dict[str, Any]:
        """What this attempt trains with, as its owner wrote it down."""
        return next((each.software for each in self.run.attempts if each.attempt == self.attempt), {})

    @property
    def batch_plan(self) -> BatchPlan:
        train = self.config.train
        return plan_batches(train.global_batch, train.micro_batch, train.accumulate, self.ranks.world_size)
