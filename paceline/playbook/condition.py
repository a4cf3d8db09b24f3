"""A condition over the configuration and the machine, as `when:` says it: what it may ask for, and whether it holds.

    check_condition("world_size > 1 and model.sprase != null", where)     -> [Problem("there is no key model.sprase; …", …)]
    holds("world_size > 1 and model.sparse != null", read_facts("sasrec", []), where)     -> False

A key that another recipe has and this one has not is null. One that no recipe has is a mistake: it would skip its phase without a word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_origin

from paceline.config.describe import describe, value_at
from paceline.config.expression import parse
from paceline.config.nearest import nearest_key
from paceline.cores import cpu_count
from paceline.errors import ConfigError, PacelineError, Problem
from paceline.launch.placement import place_ranks
from paceline.recipes.job import load_job
from paceline.recipes.registry import BUILT_IN, find_recipe, recipe_names

OWN = ("sizes", "limits")
"""numbers of a playbook itself: chosen by conditions, and so after them"""
MACHINE = ("world_size", "num_gpus", "threads")
"""what follows from the configuration and the machine: ranks, their GPUs, the cores of a rank"""


def read_facts(config: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What conditions and formulas may ask for: the configuration, key by key, and where its ranks would go here."""
    job = load_job(config, overrides)
    placement = place_ranks(job.config.launch, job.origins["launch.gpus"])
    values = {name: value_at(job.config, name) for name in describe(type(job.config))}
    for name, value in list(values.items()):
        if isinstance(value, dict):  # launch.env.NCCL_DEBUG, command.params.batch
            values |= {f"{name}.{word}": inner for word, inner in value.items()}
    threads = max(1, cpu_count() // placement.world_size)
    return values | dict(zip(MACHINE, (placement.world_size, placement.num_gpus, threads), strict=True))


def holds(condition: str, facts: Mapping[str, Any], where: str) -> bool:
    """Whether a condition holds; a key that this recipe does not have is null."""
    expression = parse(condition, where)
    return expression.holds({name: facts.get(name) for name in expression.names})


def check_condition(condition: str, where: str) -> list[Problem]:
    """What is wrong with it: that it is no expression, or asks for what no recipe has."""
    try:
        names = sorted(parse(condition, where).names)
    except ConfigError as error:
        return list(error.problems)
    # Those of other packages are imported only where nothing that ships knows the name.
    unknown = _find_unknown(_find_unknown(names, BUILT_IN), recipe_names())
    return [_say_unknown(name, condition, where) for name in unknown]


def known_sections() -> set[str]:
    """The first words of all keys that any recipe has."""
    return {key.partition(".")[0] for key in _known_keys(recipe_names())[0]}


def _find_unknown(names: Sequence[str], recipes: Collection[str]) -> list[str]:
    if not names:
        return []
    known, open_ones = _known_keys(recipes)
    return [name for name in names if name not in known and not name.startswith(open_ones)]


def _known_keys(recipes: Collection[str]) -> tuple[set[str], tuple[str, ...]]:
    """(every key of any of these recipes, what keys begin with that somebody may name himself)."""
    known, open_ones = set(MACHINE), []
    for recipe in recipes:
        with contextlib.suppress(PacelineError):  # of a broken package: whoever asks for its recipe is told
            keys = describe(find_recipe(recipe).schema)
            known |= set(keys)
            open_ones += [f"{name}." for name, each in keys.items() if get_origin(each.annotation) is dict]
    return known, tuple(open_ones)


def _say_unknown(name: str, condition: str, where: str) -> Problem:
    usable = f"use a key of the configuration, or one of {', '.join(MACHINE)}"
    if name.partition(".")[0] in OWN:
        what = f"`{condition}` asks for {name}, and `when` is asked before sizes and limits are chosen"
        return Problem(what, where, usable)
    known, _ = _known_keys(BUILT_IN)
    close = nearest_key(name, sorted(known))
    what = f"`{condition}` asks for {name}, which no recipe has" + (f"; did you mean {close}?" if close else "")
    return Problem(what, where, f"write {close}" if close else usable)
