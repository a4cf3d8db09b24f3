"""From a plan to a finished sweep, or a clear word on why not: the command line's side of `paceline sweep`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.cli.asking import can_ask
from paceline.cli.sizes import ask_sizes
from paceline.config.contradictions import Facts
from paceline.errors import ConfigError
from paceline.launch.hardware import list_gpus, visible_tokens
from paceline.launch.signals import OperatorSignals
from paceline.sweep.driver import Driver
from paceline.sweep.dry_run import describe_dry_run
from paceline.sweep.evidence import Assignment, RaceSettings
from paceline.sweep.fingerprint import describe_surroundings
from paceline.sweep.journal import Journal
from paceline.sweep.matrix import Matrix, batch_of, build_matrix
from paceline.sweep.opening import open_sweep
from paceline.sweep.outcome import Ending, Sweep
from paceline.sweep.plan import COMMAND, STEP_TIME, THROUGHPUT, Plan, load_plan
from paceline.sweep.race import Race
from paceline.sweep.racer import Racer
from paceline.sweep.trial import Slot, build_slots
from paceline.sweep.trial_settings import plan_trial

EXIT_CODES = {"finished": 0, "failed": 4, "stopped": 130}


def sweep(path: str, overrides: Sequence[str], out: Path | None, dry_run: bool, retry_failed: bool) -> int:
    """Runs the plan, or prints what it would run; the exit code."""
    plan = load_plan(path, overrides)
    matrix = build_matrix(plan)
    slots = _slots(plan, matrix)
    direction = _direction(plan, matrix)
    root = (out or Path("runs") / f"sweep-{plan.path.stem}").absolute()
    settings = _settings(plan, direction)
    unit = _unit(matrix)
    surroundings = describe_surroundings(case.job for case in matrix.cases)
    whole = Sweep(plan, matrix, root, surroundings, settings, unit, sys.argv)
    _check_trials(whole)
    if plan.config.search is not None:
        from paceline.sweep.search import check_optuna

        check_optuna(plan.config.search)
    if dry_run:
        print("\n".join(describe_dry_run(whole)))
        return 0
    with open_sweep(root) as ledger, OperatorSignals() as signals:
        journal = Journal(root / "driver.log")
        try:
            journal.say(f"sweep {root}")
            journal.say(f"{len(matrix.cases)} cases, baseline: {matrix.baseline}")
            driver = Driver(whole, build_race(whole), ledger, journal, signals, slots, retry_failed=retry_failed)
            ending = driver.run()
            return _conclude(whole, ending, journal, driver)
        finally:
            journal.close()


def build_race(sweep: Sweep) -> Race:
    """Who decides what is tried: a race of all cases, or a search first."""
    config, matrix, settings = sweep.plan.config, sweep.matrix, sweep.settings

    def build(names: Sequence[str]) -> Racer:
        values = {case.name: case.values for case in matrix.cases}
        return Racer(names, matrix.baseline, settings, config.seed, values)

    if config.search is None:
        return build([case.name for case in matrix.cases])
    from paceline.sweep.search import Searcher

    return Searcher(
        {case.name: case.values for case in matrix.cases},
        matrix.baseline,
        settings,
        config.seed,
        sampler=config.search,
        num_trials=config.search_trials,
        num_finalists=config.finalists,
        build_race=build,
    )


def _conclude(sweep: Sweep, ending: Ending, journal: Journal, driver: Driver) -> int:
    has_best, num_rivals = driver.best is not None, len(driver.rivals)
    summary = sweep.root / "summary.md"
    if summary.exists():
        journal.say(summary.read_text(encoding="utf-8"))
    if ending.state != "finished":
        journal.say(f"{ending.state}: {ending.reason}; the same command goes on where it was")
    if has_best:
        front = f" (not decided: the front of {num_rivals + 1} cases that were not told apart)" if num_rivals else ""
        journal.say(f"best: paceline train {sweep.root / 'best.yaml'}{front}")
    for line in driver.rank_verdicts:
        journal.say(f"ranks: {line}")
    journal.say(f"sweep: {sweep.root}")
    if ending.state == "finished" and not has_best:
        return 4
    return EXIT_CODES[ending.state]


def _check_trials(sweep: Sweep) -> None:
    """What would be refused at the start of a trial is refused now."""
    batch = batch_of(sweep.matrix.case(sweep.matrix.baseline))
    for case in sweep.matrix.cases:
        trial = plan_trial(case, sweep.plan, Assignment(case.name, 1, sweep.settings.steps), batch)
        trial.job.check(Facts(case.placement.world_size, case.placement.num_gpus))


def _settings(plan: Plan, direction: str) -> RaceSettings:
    config = plan.config
    return RaceSettings(
        racing=config.racing,
        repeats=None if config.repeats == "auto" else config.repeats,
        steps=config.steps - config.warmup_steps,
        warmup_steps=config.warmup_steps,
        window=config.window,
        objective=config.objective,
        direction=direction,
        loss_tolerance=config.loss_tolerance,
        margin=config.margin,
        confidence=config.confidence,
    )


def _unit(matrix: Matrix) -> str:
    first = matrix.cases[0]
    if first.job.recipe.name != COMMAND or batch_of(first) is not None:
        return "samples"
    metrics = first.job.config.model_dump()["command"]["metrics"]
    return "samples" if {"samples", "samples_per_s"} & set(metrics) else "steps"


def _direction(plan: Plan, matrix: Matrix) -> str:
    """Whether more of the objective is better; refuses a metric that nobody reports."""
    config = plan.config
    first, where = matrix.cases[0], plan.origin("objective")
    is_command = first.job.recipe.name == COMMAND
    if config.objective in (THROUGHPUT, STEP_TIME):
        if is_command and "step" not in first.job.config.model_dump()["command"]["metrics"]:
            what = f"objective={config.objective}: nothing tells the script's steps"
            raise ConfigError(what, where, r"add command.metrics: {step: 'iter (\d+)'}, in the words of the script")
        return "min" if config.objective == STEP_TIME else "max"
    if is_command:
        from paceline.recipes.command.words import own_metrics

        names, own = own_metrics(first.job.config), None
    elif can_ask():
        sizes = ask_sizes(config.recipe, first.job.overrides)
        names, own = list(sizes["metrics"]), sizes["objective"]
    else:
        names, own = [config.objective], None
    if config.objective not in names:
        there = ", ".join([THROUGHPUT, STEP_TIME, *names])
        do = f"use one of: {there}"
        raise ConfigError(f"objective={config.objective}: nobody reports that metric", where, do)
    if config.direction is not None:
        return config.direction
    if own is not None and own["metric"] == config.objective:
        return str(own["direction"])
    what = f"objective={config.objective}: nobody says whether more of it is better"
    raise ConfigError(what, where, "set direction=max, or direction=min")


def _slots(plan: Plan, matrix: Matrix) -> list[Slot]:
    num = plan.config.slots
    gpus = list_gpus()
    visible = visible_tokens(gpus, os.environ)
    uses_gpus = any(case.placement.num_gpus for case in matrix.cases)
    if num > 1 and uses_gpus:
        where = plan.origin("slots")
        if len(visible) < num:
            what = f"slots={num}, but there are {len(visible)} GPUs"
            raise ConfigError(what, where, f"set slots={len(visible)}")
        named = [case.name for case in matrix.cases if case.job.config.launch.gpus is not None]
        if named:
            do = "leave launch.gpus out: each slot has its share of the GPUs"
            raise ConfigError(f"slots={num} cannot be combined with launch.gpus ({named[0]})", where, do)
    cores = sorted(os.sched_getaffinity(0))
    if num > 1 and not uses_gpus and num > len(cores):
        what = f"slots={num}, but there are {len(cores)} cores"
        raise ConfigError(what, plan.origin("slots"), f"set slots={len(cores)}")
    return build_slots(num, cores, visible if uses_gpus else [])
