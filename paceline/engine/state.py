"""Where a run is: everything a resume needs besides weights and moments, in one visible place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainState:
    """Counts of a run. The epoch and the position in it follow from the step, random numbers from all of these."""

    step: int = 0
    """optimizer steps done"""
    samples: int = 0
    """samples trained on"""
    horizon: int = 0
    """steps that the learning rate's schedule is laid out for; fixed at the first start, whatever length is asked for later"""
    objective: str = ""
    """what `best` counts: direction and metric"""
    best: float | None = None
    """the best objective so far"""
    best_step: int | None = None
    stale_evaluations: int = 0
    """evaluations since the objective last improved"""
    evaluated_step: int | None = None
    """the last step whose evaluation is in these counts; a stop may have come before it"""
    settled: dict[str, Any] = field(default_factory=dict)
    """what the recipe goes by since the first start of the run, whatever it would find by now (`workload.Settles`)"""

    def check(self) -> None:
        """Raises ValueError for what no run can have written."""
        for name in ("step", "samples", "horizon", "stale_evaluations", "best_step", "evaluated_step"):
            value = getattr(self, name)
            is_optional = name in ("best_step", "evaluated_step")
            if not (is_optional and value is None) and (type(value) is not int or value < 0):
                raise ValueError(f"{name} is {value!r}")
        if not isinstance(self.objective, str):
            raise ValueError(f"objective is {self.objective!r}")
        if self.best is not None and type(self.best) not in (int, float):
            raise ValueError(f"best is {self.best!r}")
        if not isinstance(self.settled, dict):
            raise ValueError(f"settled is {self.settled!r}")


@dataclass(frozen=True)
class Ending:
    """How a run ended, agreed by all ranks."""

    state: str
    """finished or stopped"""
    reason: str
    """length, early_stop, or what asked for it"""
    step: int
