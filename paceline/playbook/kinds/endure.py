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
from paceline.playbook.trend import Trend, find_trend, say_lack
from paceline.reports.amounts import counted
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Run, read_run

_COLLAPSED = "gate_collapsed"


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
            results, f"{events}, the whole run, {counted(run.metrics[-1]['step'] if run.metrics else 0, 'step')}"
        )
        evidence = [Evidence("incidents", ", ".join(sorted(incidents)) or "none", events)]
        evidence += [Evidence(f"finding: {_kind(each)}", str(each["finding"].get("what")), events) for each in findings]
        metrics = short(run.layout.metrics)
        missing: dict[str, str] = {}
        for name, what, (steps, values) in (
            ("pace_change", "pace, change", _pace(run)),
            ("memory_growth", "memory, change", _memory(run)),
        ):
            trend = find_trend(steps, values)
            results |= _spread(name, trend)
            missing |= {} if trend else dict.fromkeys(_spread(name, None), say_lack(values))
            window = trend.window if trend else "the second half of the run"
            evidence.append(Evidence(what, trend.shown if trend else "not measured", f"{metrics}, {window}"))
            sources |= dict.fromkeys(_spread(name, trend), f"{metrics}, {window}")
        seen = run.events_of("observation")
        last: Mapping[str, Any] = seen[-1].get("values") or {} if seen else {}
        where = f"{events}, observation at step {seen[-1].get('step')}" if seen else ""
        results |= {f"observed.{name}": value for name, value in last.items()}
        sources |= {f"observed.{name}": where for name in last}
        evidence += [Evidence(name, f"{value:.4g}", where) for name, value in last.items() if is_finite(value)]
        if has_gates(run) and not is_finite(last.get(_COLLAPSED)):
            why = "the run tells nothing of the model's gates: they are looked at when it is evaluated"
            names = [f"observed.{_COLLAPSED}", *([] if any("gate" in name for name in last) else ["gates_closed"])]
            results |= dict.fromkeys(names)
            missing |= dict.fromkeys(names, why)
            evidence.append(Evidence("gates", "not measured", f"{events}, {counted(len(seen), 'observation')}"))
        untold = {} if has_memory(run) else dict.fromkeys(_spread("memory_growth", None), "no row tells of memory")
        return dataclasses.replace(
            outcome,
            untold=untold,
            missing=missing,
            results={**outcome.results, **results},
            evidence=[*outcome.evidence, *evidence],
            sources={**outcome.sources, **sources},
        )

    def criteria(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Of a model with gates: none has closed, and no head may have given up its other branches."""
        told = [name for name in results if name.startswith("observed.") and "gate" in name]
        open_ones = [("gates_closed == 0", f"{counted(len(told), 'number')} of gates told")] if told else []
        share = f"observed.{_COLLAPSED}"
        if share not in results:
            return open_ones
        return [*open_ones, (f"{share} <= limits.gate_collapsed", "share of heads that listen to one branch only")]


def has_gates(run: Run) -> bool:
    """Whether its attention is of branches with gates, as it said at its start: it has to tell of them then."""
    return run.choices().get("model.sparse", {}).get("effective") == "sparse"


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


Series = tuple[list[float], list[float]]
"""steps, and the values there"""


def _pace(run: Run) -> Series:
    rates = rates_of(run, run.timed)
    known = [(row["step"], rate) for row, rate in zip(run.timed, rates, strict=True) if rate is not None]
    return [step for step, _ in known], [rate for _, rate in known]


def _memory(run: Run) -> Series:
    known = [(row["step"], row["memory_gib"]) for row in run.metrics if is_finite(row.get("memory_gib"))]
    return [step for step, _ in known], [memory for _, memory in known]
