"""A phase that trains for long under its supervisor: nothing happened, the pace is steady, memory stands still, gates are open.

    kind: endure
    set: {train.max_steps: 1200, supervise.policy: halt}
    gate: [incidents == 0, pace_change_high >= -limits.pace_loss, memory_growth_high <= limits.memory_growth]

Memory stands still where even the high end of its slope's interval is below the threshold: that has to be shown. The pace is not steady
where even the high end of its interval is a loss: a disturbed machine alone is not held against the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from paceline.config.sections import key
from paceline.playbook.kinds.train import Train
from paceline.playbook.pace import rates_of, short
from paceline.playbook.phase import Work
from paceline.playbook.results import Evidence, Outcome, Reports, Value
from paceline.playbook.trend import LEAST, Trend, find_trend
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Run, read_run

COLLAPSED = "observed.gate_collapsed"


class Endure(Train):
    """One long run."""

    reports: ClassVar[Reports] = Reports(
        {
            **Train.reports.names,
            "incidents": "that the supervisor wrote",
            "findings": "that were no emergency",
            "gates_closed": "findings that a gate of the model has closed",
            "pace_change": "over the second half of the run, as a share, by the slope",
            "pace_change_low": "the low end of its interval",
            "pace_change_high": "the high end",
            "memory_growth": "over the second half of the run, as a share, by the slope",
            "memory_growth_low": "the low end of its interval",
            "memory_growth_high": "the high end",
        },
        {**Train.reports.prefixes, "observed.": "the last observation of the model by its recipe, such as its gates"},
    )

    kind: Literal["endure"] = key(..., "It trains for long.")  # type: ignore[assignment]

    def read(self, work: Work) -> Outcome:
        outcome, run = super().read(work), read_run(work.place)
        events = short(run.layout.events)
        findings = run.events_of("finding")
        closed = [each for each in findings if _kind(each) == "gate_collapse"]
        incidents = {str(each.get("incident")) for each in run.events_of("incident")}
        results: dict[str, Value] = {
            "incidents": len(incidents),
            "findings": len(findings),
            "gates_closed": len(closed),
        }
        sources = dict.fromkeys(
            results, f"{events}, the whole run, {run.metrics[-1]['step'] if run.metrics else 0:,} steps"
        )
        evidence = [Evidence("incidents", ", ".join(sorted(incidents)) or "none", events)]
        evidence += [Evidence(f"finding: {_kind(each)}", str(each["finding"].get("what")), events) for each in findings]
        metrics = short(run.layout.metrics)
        for name, what, trend in (
            ("pace_change", "pace, change", _pace_trend(run)),
            ("memory_growth", "memory, change", _memory_trend(run)),
        ):
            results |= _spread(name, trend)
            window = trend.window if trend else f"fewer than {LEAST} rows in the second half"
            evidence.append(Evidence(what, trend.shown if trend else "not measured", f"{metrics}, {window}"))
            sources |= dict.fromkeys(_spread(name, trend), f"{metrics}, {window}")
        seen = run.events_of("observation")
        last: Mapping[str, Any] = seen[-1].get("values") or {} if seen else {}
        where = f"{events}, observation at step {seen[-1].get('step')}" if seen else ""
        results |= {f"observed.{name}": value for name, value in last.items()}
        sources |= {f"observed.{name}": where for name in last}
        evidence += [Evidence(name, f"{value:.4g}", where) for name, value in last.items() if is_finite(value)]
        untold = {} if has_memory(run) else dict.fromkeys(_spread("memory_growth", None), "no row tells of memory")
        return dataclasses.replace(
            outcome,
            untold=untold,
            results={**outcome.results, **results},
            evidence=[*outcome.evidence, *evidence],
            sources={**outcome.sources, **sources},
        )

    def criteria(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Of a model that tells of gates: no head may have given up its other branches."""
        if results.get(COLLAPSED) is None:
            return []
        return [(f"{COLLAPSED} <= limits.gate_collapsed", "share of heads that listen to one branch only")]


def has_memory(run: Run) -> bool:
    """A script of its own need not tell."""
    return any(is_finite(row.get("memory_gib")) for row in run.metrics)


def _kind(event: Mapping[str, Any]) -> str:
    finding = event.get("finding")
    return str(finding.get("kind")) if isinstance(finding, dict) else ""


def _spread(name: str, trend: Trend | None) -> dict[str, Value]:
    if trend is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: trend.change, f"{name}_low": trend.low, f"{name}_high": trend.high}


def _pace_trend(run: Run) -> Trend | None:
    rates = rates_of(run, run.timed)
    known = [(row["step"], rate) for row, rate in zip(run.timed, rates, strict=True) if rate is not None]
    return find_trend([step for step, _ in known], [rate for _, rate in known])


def _memory_trend(run: Run) -> Trend | None:
    known = [(row["step"], row["memory_gib"]) for row in run.metrics if is_finite(row.get("memory_gib"))]
    return find_trend([step for step, _ in known], [memory for _, memory in known])
