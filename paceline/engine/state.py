"""Where a run is: everything a resume needs besides weights and moments, in one visible place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainState:
    """Counts of a run. The epoch and the position in it follow from the step, random numbers from all of these."""

    step: int = 0
    """optimizer steps done"""
    samples: int = 0
    """samples trained on"""
    best: float | None = None
    """the best objective so far"""
    best_step: int | None = None
    stale_evaluations: int = 0
    """evaluations since the objective last improved"""


@dataclass(frozen=True)
class Ending:
    """How a run ended, agreed by all ranks."""

    state: str
    """finished or stopped"""
    reason: str
    """length, early_stop, or what asked for it"""
    step: int
