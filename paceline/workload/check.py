"""Whether a workload is what the engine will ask of it. What is wrong is for the author of the recipe, and named.

check_workload(workload, "mine")   -> the same, or UsageError: the workload has no metrics, splits
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import UsageError
from paceline.workload.contrast import Contrasts
from paceline.workload.protocol import Workload

_REQUIRED = ("build_model", "train_set", "evaluation_set", "loss", "predict", "metrics")


def check_workload(workload: Workload, recipe: str) -> Workload:
    """The same; UsageError, for the author of the recipe, where it is not what the engine will ask of it."""
    where = f"{type(workload).__module__}.{type(workload).__qualname__}, built by the recipe {recipe}"
    asked = {*Workload.__annotations__, *(name for name in vars(Workload) if not name.startswith("_"))}
    if isinstance(workload, Contrasts):
        asked.remove("loss")
    # Inherited, but without a body: whoever calls it gets nothing from it.
    empty = {name for name in _REQUIRED if getattr(type(workload), name, None) is getattr(Workload, name)} & asked
    missing = sorted(name for name in asked if not hasattr(workload, name) or name in empty)
    if missing:
        do = (
            "write them, and inherit from paceline.workload.Workload for those that have a default; see docs/recipes.md"
        )
        raise UsageError(f"the workload has no {', '.join(missing)}", where, do)
    objective = workload.objective
    if objective.metric not in workload.metric_names or objective.direction not in ("max", "min"):
        what = f"the objective {objective.metric} ({objective.direction}) is none of the metrics ({', '.join(workload.metric_names)})"
        raise UsageError(what, where, "name one of metric_names, and max or min")
    return workload


def check_metrics(workload: Workload, split: str, found: Mapping[str, float]) -> dict[str, float]:
    """The same; UsageError, for the author of the recipe, where they are not those that validation.csv has columns for."""
    if set(found) != set(workload.metric_names):
        where = f"{type(workload).__module__}.{type(workload).__qualname__}.metrics({split!r}, …)"
        what = f"the metrics are {', '.join(found)}, and metric_names says {', '.join(workload.metric_names)}"
        raise UsageError(what, where, "return every one of metric_names, and no other")
    return dict(found)
