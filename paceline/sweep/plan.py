"""A sweep's plan: what is compared, how long, and by what, as a YAML file says it; unknown keys are refused with the nearest name.

recipe: sasrec
axes: {parallel.bucket_mb: [25, 50, 100], data.num_workers: [0, 2]}
steps: 300

load_plan("plan.yaml", ["steps=50", "train.global_batch=64"])      # what is no key of a plan is a fixed setting of every case
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.config.describe import describe
from paceline.config.loading import DEFAULT, resolve
from paceline.config.nearest import nearest
from paceline.config.overrides import parse_overrides
from paceline.config.sections import Bool, Section, key
from paceline.config.shipped import find_shipped, list_shipped
from paceline.config.source import Entry, Layer, read_layer, show
from paceline.errors import ConfigError, Problem
from paceline.recipes.command.words import config_key

COMMAND = "command"
"""The recipe of a script that has never heard of us; its settings are the plan's section of the same name."""
THROUGHPUT = "throughput"
STEP_TIME = "step_ms_p50"
"""Iteration time as an objective: for plans with one batch size."""
_FOLDER = "plans"

_DECIDED = {
    "train.max_steps": "`steps` says how long a trial is",
    "train.epochs": "`steps` says how long a trial is",
    "run.out": "every trial has a directory of its own",
}
"""What a trial decides."""


class PlanConfig(Section):
    recipe: str = key(..., "Which recipe or configuration file every case begins with.")
    set: dict[str, Any] = key({}, "Settings that all cases share.")
    command: dict[str, Any] = key({}, "For recipe command: argv, params, metrics and so on, as in its configuration.")
    axes: dict[str, list[Any]] = key({}, "Dotted key to the values it takes; the cases are all combinations.")
    cases: list[dict[str, Any]] = key([], "Cases by name of key and value; with axes, each is combined with them.")
    exclude: list[str] = key([], "Conditions on keys; a case for which one holds is left out.")
    repeats: Literal["auto"] | Annotated[int, Field(ge=1)] = key(
        "auto", "Trials of each case; auto: as many as a pilot's noise asks for."
    )
    steps: int = key(300, "Steps of a trial, those of the warm-up among them.", ge=2)
    warmup_steps: int = key(20, "The first steps of a trial, which are not counted.", ge=0)
    baseline: dict[str, Any] | None = key(None, "The case that the others are compared with; null: the first one.")
    objective: str = key(
        THROUGHPUT, "What the best case has most of: throughput, step_ms_p50 (least), or a validation metric."
    )
    direction: Literal["max", "min"] | None = key(
        None, "Whether more of a validation metric is better; null: as the recipe says of its own."
    )
    loss_tolerance: float | None = key(
        0.02, "A case whose loss is worse than the baseline's by more than this share cannot win; null: may.", ge=0
    )
    margin: float = key(0.01, "Cases closer than this share are tied.", gt=0, lt=1)
    confidence: float = key(0.95, "Of all verdicts together.", gt=0.5, lt=1)
    racing: Bool = key(True, "End cases as soon as their verdict is certain; false: the full grid.")
    search: Literal["random", "tpe"] | None = key(
        None, "How optuna chooses which cases of a large matrix are tried; the best are raced. null: all of them are."
    )
    search_trials: int = key(20, "For search: cases that are tried, one trial each.", ge=2)
    finalists: int = key(3, "For search: the best of them, which are raced against the baseline.", ge=1)
    seed: int = key(0, "Seed of the order of trials and of a search.", ge=0)
    trial_timeout_s: float = key(2400, "A trial that takes longer is ended and counts as failed.", gt=0, le=1e7)
    stop_grace_s: float = key(10, "Seconds that a trial has to end itself when asked, before it is killed.", gt=0)
    stop_on_error: Bool = key(False, "End the sweep at the first trial that fails.")
    slots: int = key(1, "Trials side by side, each with its share of the GPUs or cores.", ge=1)
    rank_table: Bool = key(False, "End with the phases of every rank, and a verdict on who slows the others down.")
    window: int = key(50, "Steps of a window within a trial.", ge=1)
    progress_s: float = key(30, "Seconds between two lines about a running trial.", gt=0)
    tail_lines: int = key(80, "Last lines of launcher and guilty rank that a failed trial shows.", ge=0)


@dataclass(frozen=True)
class Plan:
    """A plan and where each of its values comes from."""

    config: PlanConfig
    origins: dict[str, str]
    """of each key, and of each entry of a mapping: `axes.parallel.bucket_mb` -> plan.yaml:3"""
    path: Path
    shown: str
    """the file, as messages name it"""

    def origin(self, *names: str) -> str:
        """Where the first of these names was said."""
        return next((self.origins[name] for name in names if name in self.origins), self.shown)


def shipped_plans() -> list[str]:
    """Those that come with the package, by the name to type."""
    return list_shipped(_FOLDER)


def load_plan(path: str | Path, overrides: Sequence[str] = ()) -> Plan:
    """The plan of that name or file, with what was typed; everything wrong with it by itself is said at once."""
    file, shown = find_shipped(_FOLDER, "plan", str(path))
    base = read_layer(file, shown)
    keys = describe(PlanConfig)
    words = [text if _word(text) in keys else f"set.{text}" for text in overrides]
    typed = parse_overrides(words)
    for name, entry in list(typed.entries.items()):
        typed.entries[name] = Entry(entry.value, entry.origin.replace("'set.", "'", 1))
    for name in list(base.entries):
        # An axis or a fixed setting given anew replaces the file's; a mapping given as a whole replaces all of it.
        own = _spelled_out(name)
        if any(own == other or own.startswith(f"{other}.") for other in map(_spelled_out, typed.entries)):
            del base.entries[name]
    layer = Layer({**base.entries, **typed.entries}, [*base.problems, *typed.problems])
    resolved = resolve(PlanConfig, layer, problems=[*_unknown(layer), *_empty_axes(layer)])
    origins = resolved.origins | {name: entry.origin for name, entry in layer.entries.items()}
    plan = Plan(resolved.config, origins, file, shown)
    problems = [*_check(plan)]
    if problems:
        raise ConfigError(problems=problems)
    return plan


def _spelled_out(name: str) -> str:
    """One name for what may be said of a script in two places: `set.params.batch` is `command.params.batch`."""
    key = config_key(name.removeprefix("set."))
    return key if key.startswith(f"{COMMAND}.") else name


def _word(text: str) -> str:
    return text.partition("=")[0].strip().partition(".")[0]


def _unknown(layer: Layer) -> list[Problem]:
    """Words that no plan has, taken out of the layer; one that holds a mapping is named by itself."""
    keys = describe(PlanConfig)
    problems: dict[str, Problem] = {}
    for name in [name for name in layer.entries if _word(name) not in keys]:
        origin, word = layer.entries.pop(name).origin, _word(name)
        near = nearest(word, keys)
        what = f"there is no key {word} in a plan" + (f"; did you mean {near}?" if near else "")
        do = f"write {near}" if near else f"use one of: {', '.join(keys)}"
        problems.setdefault(word, Problem(what, origin, do))
    return list(problems.values())


def _empty_axes(layer: Layer) -> list[Problem]:
    """Before types are looked at: whoever writes `bucket_mb: 25` means a list of one."""
    problems = []
    for name, entry in layer.entries.items():
        axis = name.removeprefix("axes.")
        if axis == name:
            continue
        if entry.value in ([], None, {}):
            problems.append(Problem(f"the axis {axis} has no values", entry.origin, f"give it some: {axis}: [1, 2]"))
        elif not isinstance(entry.value, list):
            value = show(entry.value)
            what = f"the axis {axis} is {value}, not a list of values"
            problems.append(Problem(what, entry.origin, f"write {axis}: [{value}]"))
    return problems


def _check(plan: Plan) -> list[Problem]:
    """What types alone cannot see."""
    config, problems = plan.config, []
    if config.warmup_steps >= config.steps:
        what = f"warmup_steps={config.warmup_steps} leaves nothing of steps={config.steps} to be counted"
        problems.append(Problem(what, plan.origin("warmup_steps", "steps"), f"set steps above {config.warmup_steps}"))
    if config.command and config.recipe != COMMAND:
        what = f"the section command has no meaning for recipe={config.recipe}"
        problems.append(Problem(what, plan.origin("command"), "write recipe: command, or remove the section"))
    if config.direction is not None and config.objective in (THROUGHPUT, STEP_TIME):
        what = f"direction={config.direction} has no meaning for objective={config.objective}"
        problems.append(Problem(what, plan.origin("direction"), "remove it"))
    if config.rank_table and config.recipe == COMMAND:
        what = "rank_table has no meaning for recipe=command: a script does not tell what its ranks do"
        problems.append(Problem(what, plan.origin("rank_table"), "remove it"))
    for name in ("search_trials", "finalists"):
        if config.search is None and plan.origins[name] != DEFAULT:
            what = f"{name} has no meaning without a search"
            problems.append(Problem(what, plan.origin(name), f"set search=tpe, or remove {name}"))
    for name, values in config.axes.items():
        shown = [show(value) for value in values]
        twice = sorted({value for value in shown if shown.count(value) > 1})
        if twice:
            what = f"the axis {name} has the value {twice[0]} twice"
            problems.append(Problem(what, plan.origin(f"axes.{name}", "axes"), "name each value once"))
        twin = next((other for other in config.set if config_key(other) == config_key(name)), None)
        if twin is not None:
            where = f"{plan.origin(f'axes.{name}')} and {plan.origin(f'set.{twin}', 'set')}"
            what = f"{name} is an axis, and set besides"
            problems.append(Problem(what, where, f"remove it from set, or give axes.{name}=[{show(config.set[twin])}]"))
    for name, why in _DECIDED.items():
        if any(name in given for given in (config.set, config.axes, *config.cases)):
            where = plan.origin(f"set.{name}", f"axes.{name}", "cases")
            problems.append(Problem(f"{name} cannot be given: {why}", where, "remove it"))
    return problems
