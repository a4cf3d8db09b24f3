"""The curves of a run: what its tables say over its steps, as charts. A column that a table does not have, or never fills, is no chart.

training_charts(facts)       -> loss, learning rate, gradient norm, samples/s, step time, phases, memory, …
evaluation_charts(facts)     -> one per metric, one curve per split, the best marked
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.reports.amounts import figure
from paceline.reports.chart import Chart, Mark, Series
from paceline.reports.run_facts import RunFacts
from paceline.telemetry.reader import Row
from paceline.telemetry.tables import VALIDATION_COLUMNS

PHASES = ("data", "forward", "backward", "optimizer")
_BORDER = "another attempt began"


def training_charts(facts: RunFacts) -> list[Chart]:
    rows = facts.run.metrics
    unit = str(facts.plan.get("unit", "units"))
    around: dict[str, Any] = {
        "x_range": _range(facts),
        "borders": [step for attempt, step in facts.starts.items() if step > 0 and attempt > 1],
        "border_text": _BORDER,
    }
    charts = [
        _chart(rows, "loss", "loss", ["loss"], may_be_log=True, **around),
        _chart(rows, "learning rate", "learning rate", ["lr"], from_zero=True, **around),
        _chart(rows, "gradient norm", "norm before clipping", ["grad_norm"], may_be_log=True, **around),
        _chart(rows, "throughput", "samples/s, all ranks", ["samples_per_s"], from_zero=True, **around),
        _chart(rows, f"{unit} per second", f"{unit}/s, all ranks", ["units_per_s"], from_zero=True, **around),
        _chart(
            rows,
            "step time",
            "ms per step",
            ["step_ms", "step_ms_p50", "step_ms_p90"],
            names=("mean", "p50", "p90"),
            from_zero=True,
            **around,
        ),
        _phases(rows, **around),
        _chart(rows, "memory", "GiB, the most of any rank", ["memory_gib"], from_zero=True, **around),
        _chart(rows, "GPU utilisation", "% of rank 0's GPU", ["gpu_util"], from_zero=True, **around),
        _chart(rows, "model FLOPs utilisation", "share of the peak", ["mfu"], from_zero=True, **around),
    ]
    return [chart for chart in charts if chart is not None]


def evaluation_charts(facts: RunFacts) -> list[Chart]:
    rows = facts.run.validation
    known = {*VALIDATION_COLUMNS, "time"}
    metrics = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in known]
    splits = list(dict.fromkeys(_split(row) for row in rows))
    objective = facts.plan.get("objective")
    objective = objective if isinstance(objective, dict) else {}
    charts = []
    for metric in metrics:
        series = []
        for split in splits:
            own = [row for row in rows if _split(row) == split]
            series.append(Series(split, [row["step"] for row in own], _column(own, metric)))
        series = [each for each in series if not each.is_empty]
        if series:
            best = _best(series[0], str(objective.get("direction"))) if objective.get("metric") == metric else None
            is_alone = len(series) == 1
            title = f"{metric}, {series[0].name}" if is_alone else metric
            charts.append(Chart(title, metric, series, x_range=_range(facts), mark=best))
    return charts


def _chart(
    rows: Sequence[Row], title: str, unit: str, columns: Sequence[str], names: Sequence[str] = (), **options: Any
) -> Chart | None:
    steps = [row["step"] for row in rows]
    pairs = zip(names or columns, columns, strict=True)
    series = [Series(name, steps, _column(rows, column)) for name, column in pairs]
    series = [each for each in series if not each.is_empty]
    return Chart(title, unit, series, **options) if series else None


def _phases(rows: Sequence[Row], **options: Any) -> Chart | None:
    """What a step consists of. What no phase accounts for is drawn, too: the stack is as high as a step is long."""
    steps = [row["step"] for row in rows]
    series = [Series(phase, steps, _column(rows, f"{phase}_ms")) for phase in PHASES]
    series = [each for each in series if not each.is_empty]
    if not series:
        return None
    known = [each.y for each in series]
    rest = [
        max(0.0, whole - sum(part for part in parts if part is not None)) if whole is not None else None
        for whole, *parts in zip(_column(rows, "step_ms"), *known, strict=True)
    ]
    series.append(Series("other", steps, rest))
    return Chart("phases of a step", "ms per step of rank 0", series, is_stacked=True, from_zero=True, **options)


def _split(row: Row) -> str:
    return str(row.get("split") or "evaluation")


def _column(rows: Sequence[Row], name: str) -> list[float | None]:
    # By type, not by a call: there are as many cells as steps times columns.
    return [value if type(value := row.get(name)) is float or type(value) is int else None for row in rows]


def _best(series: Series, direction: str) -> Mark | None:
    points = series.thinned.points
    if not points or direction not in ("max", "min"):
        return None
    choose = max if direction == "max" else min
    step, value = choose(points, key=lambda point: point[1])
    return Mark(step, value, f"best {series.name}: {figure(value)} at step {step:,}")


def _range(facts: RunFacts) -> tuple[float, float]:
    """All charts of a run share their x axis, so that one can look from one to the other."""
    steps = [row["step"] for row in (*facts.run.metrics[-1:], *facts.run.validation[-1:])]
    return (0, max(steps, default=1))
