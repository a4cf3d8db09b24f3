"""Everything there is to say about a sweep at one moment, as one plain object: what sweep.json holds and all tables are made of.

    describe_sweep(sweep, rows, counted, ranking, 3, history, Ending("running"))   -> {"v": 1, "state": "running", "cases": [...], "trials": [...], …}

docs/sweeps.md has every field. Pure: the ledger's rows and the race's verdicts in, plain data out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paceline
from paceline.sweep.costs import count_costs
from paceline.sweep.doubt import find_doubt
from paceline.sweep.evidence import ENDED, RaceSettings, Verdict
from paceline.sweep.fingerprint import Surroundings
from paceline.sweep.ledger import Row
from paceline.sweep.matrix import Case, Matrix
from paceline.sweep.measured import Measured, from_record
from paceline.sweep.plan import STEP_TIME, THROUGHPUT, Plan
from paceline.sweep.ranking import Ranking
from paceline.sweep.sentence import say_result

SCHEMA = 1
_WIDEST = 10.0
_MAY_WIN = ("winner", "leads", "tied", "slower", "undecided")
_COMMON = (
    "samples_per_s",
    "units_per_s",
    "step_ms_p50",
    "step_ms_p90",
    "data_ms",
    "memory_gib",
    "rank_spread_ms",
    "final_loss",
    "metric",
)


@dataclass(frozen=True)
class Sweep:
    """What does not change while a sweep runs."""

    plan: Plan
    matrix: Matrix
    root: Path
    surroundings: Surroundings
    settings: RaceSettings
    unit: str
    """what throughput counts where trials tell no unit: samples, or the steps of a script that does not tell more"""
    argv: list[str]


@dataclass(frozen=True)
class Ending:
    """How a sweep stands."""

    state: str
    """running, finished, stopped or failed"""
    reason: str = ""
    notes: tuple[str, ...] = ()


def describe_sweep(
    sweep: Sweep,
    rows: Sequence[Row],
    counted: Collection[int],
    ranking: Ranking,
    grid_repeats: int,
    history: Sequence[Mapping[str, Any]],
    ending: Ending,
) -> dict[str, Any]:
    """`counted` are the ids of the rows whose results the ranking is made of; `grid_repeats` those of the full grid."""
    objective = sweep.plan.config.objective
    measured = {row.id: from_record(row.record).for_objective(objective) for row in rows if row.record is not None}
    trials = [_trial(row, measured.get(row.id), sweep, row.id in counted) for row in rows]
    of_case: dict[str, list[Measured]] = {case.name: [] for case in sweep.matrix.cases}
    for row in rows:
        if row.id in counted and row.id in measured and row.case in of_case:
            of_case[row.case].append(measured[row.id])
    places = {name: place for place, name in enumerate(ranking.order, 1)}
    verdicts = {name: _close(ranking.verdicts[name], trials, ending) for name, trials in of_case.items()}
    cases = [_case(case, of_case[case.name], verdicts[case.name], places, sweep) for case in sweep.matrix.cases]
    cases.sort(key=lambda case: case["rank"])
    best = _best(cases)
    # Samples or steps until a trial has told the recipe's own.
    unit = next((measured[number].unit for number in sorted(counted) if number in measured), None) or sweep.unit
    aim = _objective(sweep, unit)
    # While it runs, everything is open; that is no news.
    doubt = find_doubt(ranking, sweep.settings) if best and ending.state == "finished" else None
    return {
        "v": SCHEMA,
        "state": ending.state,
        "reason": ending.reason,
        "updated": time.time(),
        "created": min((row.began for row in rows), default=time.time()),
        "paceline": paceline.__version__,
        "argv": sweep.argv,
        "directory": str(sweep.root),
        "recipe": sweep.plan.config.recipe,
        "plan": sweep.plan.config.model_dump(mode="json"),
        "plan_file": str(sweep.plan.path),
        "axes": [{"name": name, "values": values} for name, values in sweep.matrix.axes.items()],
        "num_excluded": sweep.matrix.num_excluded,
        "objective": aim,
        "unit": unit,
        "baseline": sweep.matrix.baseline,
        "winner": next((case["name"] for case in cases if case["verdict"] == "winner"), None),
        "best": best["name"] if best else None,
        "is_decided": ending.state == "finished" and _is_decided(cases),
        "sentence": say_result(cases, best, aim, is_ended=ending.state == "finished"),
        "rivals": list(doubt.rivals) if doubt else [],
        "repeats_needed": doubt.repeats if doubt else None,
        "cases": cases,
        "trials": trials,
        "history": list(history),
        "costs": count_costs(rows, measured, counted, of_case, sweep.settings.steps, grid_repeats),
        "machine": dict(sweep.surroundings.machine),
        "hardware": dict(sweep.surroundings.hardware),
        "code": dict(sweep.surroundings.code) | {"git": sweep.surroundings.machine.get("git")},
        "notes": [*([doubt.sentence] if doubt else []), *ending.notes],
    }


def _close(verdict: Verdict, trials: Sequence[Measured], ending: Ending) -> Verdict:
    """Where a sweep was ended before its race was: a case that has only failed is no open question."""
    has_failed = bool(trials) and not any(trial.status in ENDED for trial in trials)
    if ending.state == "running" or verdict.verdict != "undecided" or not has_failed:
        return verdict
    return replace(verdict, verdict="failed", complete=False, evidence=", ".join(trial.status for trial in trials))


def _is_metric(sweep: Sweep) -> bool:
    return sweep.settings.objective != THROUGHPUT


def _objective(sweep: Sweep, unit: str) -> dict[str, str]:
    name = sweep.plan.config.objective
    units = {THROUGHPUT: f"{unit}/s", STEP_TIME: "ms"}
    return {
        "name": name,
        "unit": units.get(name, ""),
        "direction": sweep.settings.direction if _is_metric(sweep) else "max",
    }


def _trial(row: Row, measured: Measured | None, sweep: Sweep, is_counted: bool) -> dict[str, Any]:
    base = {
        "trial": row.id,
        "case": row.case,
        "round": row.round,
        "status": row.status,
        "reason": row.reason,
        "is_counted": is_counted,
        "directory": row.directory,
        "began": row.began,
        "ended": row.ended,
        "steps": row.steps,
        "warmup_steps": row.warmup_steps,
        "key": row.key,
        "hardware": row.hardware,
        "code": row.code,
        "data": row.data,
    }
    values = measured.to_record() if measured is not None else {}
    return {name: value for name, value in values.items() if name not in ("status", "reason")} | base


def _case(
    case: Case, trials: Sequence[Measured], verdict: Verdict, places: Mapping[str, int], sweep: Sweep
) -> dict[str, Any]:
    good = [trial for trial in trials if trial.status in ENDED]
    means = {name: _mean([getattr(trial, name) for trial in good]) for name in _COMMON}
    rates = [trial.samples_per_s for trial in good if trial.samples_per_s is not None]
    baseline = case.name == sweep.matrix.baseline
    # One or two trials among noisy ones give an interval from nothing to everything: that is no knowledge to show.
    is_known = bool(verdict.low and verdict.high and 0 < verdict.high / verdict.low < _WIDEST)
    return {
        "name": case.name,
        "values": case.values,
        "rank": places[case.name],
        "is_baseline": baseline,
        "verdict": verdict.verdict,
        "evidence": verdict.evidence,
        "is_complete": verdict.complete,
        "value": verdict.value,
        "low": verdict.low if is_known else None,
        "high": verdict.high if is_known else None,
        "ratio": verdict.ratio,
        "ratio_low": verdict.ratio_low,
        "ratio_high": verdict.ratio_high,
        "num_trials": len(trials),
        "num_ok": len(good),
        "num_failed": len(trials) - len(good),
        "failures": sorted({f"{trial.status}: {trial.reason}" for trial in trials if trial not in good}),
        **means,
        "samples_per_s_std": statistics.stdev(rates) if len(rates) > 1 else None,
        "device_s": sum(trial.device_s for trial in trials),
        "world_size": case.placement.world_size,
        "num_gpus": case.placement.num_gpus,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None


def _is_decided(cases: Sequence[Mapping[str, Any]]) -> bool:
    verdicts = [case["verdict"] for case in cases]
    return "winner" in verdicts and "undecided" not in verdicts


def _best(cases: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The winner, or who leads so far."""
    first = cases[0] if cases else None
    return first if first is not None and first["verdict"] in _MAY_WIN and first["value"] is not None else None
