"""The matrix: every case of a plan with its complete configuration, checked by the configuration's own rules before anything starts.

for case in build_matrix(plan).cases: case.name, case.values, case.job
-> "bucket_mb=25 num_workers=0", {"parallel.bucket_mb": 25, "data.num_workers": 0}, Job(…)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config.contradictions import Facts
from paceline.config.describe import describe, value_at
from paceline.config.expression import Expression, parse
from paceline.config.nearest import nearest_key
from paceline.config.source import show
from paceline.errors import ConfigError, PacelineError, Problem
from paceline.launch.placement import Placement, place_ranks
from paceline.recipes.command.words import config_key, samples_per_step
from paceline.recipes.job import Job, load_job
from paceline.sweep.fingerprint import config_digest
from paceline.sweep.plan import COMMAND, STEP_TIME, THROUGHPUT, Plan

_MOST_CASES = 10_000


@dataclass(frozen=True)
class Case:
    """One point of the matrix."""

    name: str
    values: dict[str, Any]
    """what distinguishes it, by dotted key"""
    job: Job
    """its complete configuration, as one would train with it: without what makes a trial short"""
    placement: Placement


@dataclass(frozen=True)
class Matrix:
    """All cases, in the order of the plan."""

    cases: tuple[Case, ...]
    axes: dict[str, list[Any]]
    """every key that differs, with its values in order"""
    baseline: str
    num_excluded: int

    def case(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)


def build_matrix(plan: Plan) -> Matrix:
    """The cases of a plan; ConfigError with everything that is wrong with any of them."""
    points = list(_points(plan))
    kept, excluded = _leave_out(points, plan)
    problems: list[Problem] = []
    names = _names(kept, plan)
    cases = []
    for values, name in zip(kept, names, strict=True):
        try:
            cases.append(_load(name, values, plan))
        except PacelineError as error:
            problems += error.problems
    if not kept:
        do = "remove a condition from exclude" if excluded else "give axes or cases"
        problems.append(Problem("the plan has no case", plan.origin("exclude", "axes", "cases"), do))
    problems += _twins(cases, plan)
    if problems:
        raise ConfigError(problems=_once(problems))
    baseline = _baseline(cases, plan)
    _check_objective(cases, plan)
    return Matrix(tuple(cases), _axes(kept), baseline, excluded)


def _points(plan: Plan) -> Iterable[dict[str, Any]]:
    axes = plan.config.axes
    num = max(1, len(plan.config.cases))
    for values in axes.values():
        num *= len(values)
    if num > _MOST_CASES:
        what = f"the plan has {num:,} cases, and at most {_MOST_CASES:,} are possible"
        raise ConfigError(what, plan.origin("axes"), "leave values of an axis out")
    if not axes and not plan.config.cases:
        # Nothing to compare, and still a sweep: how noisy is this machine with this configuration?
        return [{}]
    bases = [_flat(case) for case in plan.config.cases] or [{}]
    both = sorted({name for base in bases for name in base} & axes.keys())
    if both:
        where = f"{plan.origin(f'axes.{both[0]}')} and {plan.origin('cases')}"
        raise ConfigError(f"{both[0]} is an axis, and a case sets it, too", where, "keep one of them")
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [base | combination for base in bases for combination in combinations]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{parallel: {bucket_mb: 25}}` and `{parallel.bucket_mb: 25}` are the same."""
    found: dict[str, Any] = {}
    for word, value in tree.items():
        name = f"{prefix}{word}"
        found |= _flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found


def _leave_out(points: list[dict[str, Any]], plan: Plan) -> tuple[list[dict[str, Any]], int]:
    """The points that no condition excludes, and how many one does."""
    conditions = [parse(text, plan.origin("exclude")) for text in plan.config.exclude]
    if not conditions:
        return points, 0
    common = _common_values(plan) if any(_asks_for_more(condition, points) for condition in conditions) else {}
    kept = [p for p in points if not any(condition.holds(common | p) for condition in conditions)]
    return kept, len(points) - len(kept)


def _asks_for_more(condition: Expression, points: list[dict[str, Any]]) -> bool:
    return any(not condition.names <= point.keys() for point in points)


def _common_values(plan: Plan) -> dict[str, Any]:
    """Every key of the configuration that the cases share."""
    job = load_job(plan.config.recipe, (), given_of(plan, {}))
    values = {name: value_at(job.config, name) for name in describe(type(job.config))}
    params = values.get(f"{COMMAND}.params") or {}
    return values | {f"params.{name}": value for name, value in params.items()}


def given_of(plan: Plan, values: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """What a case gives beside its recipe: key -> (value, where it was said)."""
    given = {}
    if plan.config.recipe == COMMAND:
        for name, value in _flat(plan.config.command).items():
            given[f"{COMMAND}.{name}"] = (value, plan.origin(f"command.{name}", "command"))
    # After the section, which may name the parameters' usual values.
    for name, value in _flat(plan.config.set).items():
        given[config_key(name)] = (value, plan.origin(f"set.{name}", "set"))
    for name, value in values.items():
        given[config_key(name)] = (value, plan.origin(f"axes.{name}", "cases"))
    return given


def _load(name: str, values: dict[str, Any], plan: Plan) -> Case:
    job = load_job(plan.config.recipe, (), given_of(plan, values))
    placement = place_ranks(job.config.launch, job.origins["launch.gpus"])
    job.check(Facts(placement.world_size, placement.num_gpus))
    return Case(name, values, job, placement)


def _names(points: list[dict[str, Any]], plan: Plan) -> list[str]:
    """A name per point: the last words of its keys where they are unique, and their values."""
    keys = list(dict.fromkeys(name for point in points for name in point))
    last = [key.rpartition(".")[2] for key in keys]
    short = {key: word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)}
    names = [" ".join(f"{short[key]}={show(value)}" for key, value in point.items()) or "as it is" for point in points]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = f"two cases are the same: {twice[0]}"
        raise ConfigError(what, plan.origin("cases", "axes"), "keep one of them")
    return names


def _twins(cases: list[Case], plan: Plan) -> list[Problem]:
    """Cases that train alike under two names: one result would count for both."""
    seen: dict[str, str] = {}
    problems = []
    for case in cases:
        other = seen.setdefault(config_digest(case.job), case.name)
        if other != case.name:
            what = f"{other} and {case.name} are the same configuration"
            problems.append(Problem(what, plan.origin("axes", "cases"), "keep one of them"))
    return problems


def _axes(points: list[dict[str, Any]]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for point in points:
        for name, value in point.items():
            found = axes.setdefault(name, [])
            if value not in found:
                found.append(value)
    return axes


def _baseline(cases: list[Case], plan: Plan) -> str:
    wanted = plan.config.baseline
    if wanted is None:
        return cases[0].name
    wanted = _flat(wanted)
    unknown = sorted(name for name in wanted if not any(name in case.values for case in cases))
    where = plan.origin(*(f"baseline.{name}" for name in unknown or wanted), "baseline")
    if unknown:
        axes = {name for case in cases for name in case.values}
        near = nearest_key(unknown[0], axes)
        do = f"use {near}" if near else f"name values of {', '.join(sorted(axes)) or 'axes'}"
        raise ConfigError(f"the baseline names {unknown[0]}, which is no axis", where, do)
    found = [case for case in cases if all(_same(case.values.get(name), value) for name, value in wanted.items())]
    if not found:
        shown = ", ".join(f"{name}={show(value)}" for name, value in wanted.items())
        do = "add its values to the axes, or name a case that is there: " + "; ".join(c.name for c in cases[:4])
        raise ConfigError(f"the baseline {shown} is not in the matrix", where, do)
    if len(found) > 1:
        what = f"the baseline does not say which of {len(found)} cases it is: {'; '.join(c.name for c in found[:4])}"
        raise ConfigError(what, where, "name a value of every axis")
    return found[0].name


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _check_objective(cases: list[Case], plan: Plan) -> None:
    """Iteration time compares nothing where the work of an iteration differs."""
    if plan.config.objective != STEP_TIME:
        return
    where = plan.origin("objective")
    sizes = {batch_of(case) for case in cases}
    if None in sizes:
        do = f"say command.samples_per_step, or set objective={THROUGHPUT}"
        raise ConfigError(f"objective={STEP_TIME}: the script does not say how many samples a step has", where, do)
    if len(sizes) > 1:
        shown = ", ".join(map(str, sorted(size for size in sizes if size is not None)))
        what = f"objective={STEP_TIME} cannot compare batches of {shown}: the smallest would win"
        raise ConfigError(what, where, f"set objective={THROUGHPUT}, or one batch size")


def batch_of(case: Case) -> int | None:
    """Samples of one step; None where a script does not say."""
    if case.job.recipe.name != COMMAND:
        return case.job.config.train.global_batch
    return samples_per_step(case.job.config)


def _once(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
