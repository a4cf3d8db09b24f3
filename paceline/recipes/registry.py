"""Finds a recipe by its name: those that ship with the package, and those that others register as entry points.

    [project.entry-points."paceline.recipes"]
    mine = "my_package.config:RECIPE"

A recipe is imported when it is asked for, never to list its name. What another package gives is checked, and named where it is wrong.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pkgutil
from typing import Any

from paceline.config.nearest import nearest
from paceline.config.sections import RunConfig
from paceline.errors import PacelineError, UsageError
from paceline.telemetry.run_file import SDK_RECIPE
from paceline.workload import Recipe, Workload, check_workload

ENTRY_POINTS = "paceline.recipes"

BUILT_IN = {
    "command": "paceline.recipes.command.config:RECIPE",
    "csa": "paceline.recipes.csa.config:RECIPE",
    "nsa": "paceline.recipes.nsa.config:RECIPE",
    "sasrec": "paceline.recipes.sasrec.config:RECIPE",
    "tenrec": "paceline.recipes.tenrec.config:RECIPE",
}
_REPAIR = "repair or remove that package"


def recipe_names() -> list[str]:
    """Every recipe that can be found here; that for foreign scripts last, for it is nobody's example of a recipe."""
    return sorted({*BUILT_IN, *_others()}, key=lambda name: (name == "command", name))


def find_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    others = _others()
    if name == SDK_RECIPE:
        what = "this run was trained by a script of its own, which knows its model and data; Paceline does not"
        raise UsageError(what, f"recipe: {name}", "start that script again; docs/sdk.md says what works for such a run")
    if name not in BUILT_IN and name not in others:
        names = recipe_names()
        close = nearest(name, names)
        do = f"use {close}" if close else "use one of them, or a path to a YAML file"
        raise UsageError(f"there is no recipe {name!r} (there are: {', '.join(names)})", "", do)
    places = others.get(name, [])
    if name in BUILT_IN and not places:
        recipe = pkgutil.resolve_name(BUILT_IN[name])
        assert isinstance(recipe, Recipe)
        return recipe
    if name in BUILT_IN or len(places) > 1:
        both = ", ".join([*([f"Paceline ({BUILT_IN[name]})"] if name in BUILT_IN else []), *places])
        what = f"the recipe {name!r} is registered more than once: {both}"
        raise UsageError(what, f"entry points {ENTRY_POINTS}", "remove all but one of these packages")
    return _load_other(name, places[0])


def _others() -> dict[str, list[str]]:
    """The recipes of other packages: name -> where each of them lies."""
    found: dict[str, list[str]] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found.setdefault(point.name, []).append(point.value)
    return found


def _load_other(name: str, place: str) -> Recipe:
    where = f"entry point {name} = {place}"
    try:
        recipe = pkgutil.resolve_name(place)
    except PacelineError:
        raise
    except Exception as error:  # whatever the other package does while it is imported
        what = f"the recipe {name!r} of another package cannot be loaded: {type(error).__name__}: {error}"
        raise UsageError(what, where, _REPAIR) from error
    if not isinstance(recipe, Recipe):
        raise UsageError(f"{place} is not a paceline.workload.Recipe", where, _REPAIR)
    if recipe.name != name:
        what = f"the entry point {name!r} leads to a recipe that calls itself {recipe.name!r}"
        raise UsageError(what, where, "give both the same name")
    if not (isinstance(recipe.schema, type) and issubclass(recipe.schema, RunConfig)):
        what = f"the schema of the recipe {name!r} is no subclass of paceline.config.sections.RunConfig"
        raise UsageError(what, where, _REPAIR)
    if recipe.config_file is not None and not recipe.config_file.is_file():
        what = f"the configuration of the recipe {name!r} is missing from its package"
        raise UsageError(what, str(recipe.config_file), "list it among the package's data files, and install it again")

    def build(config: Any) -> Workload:
        return check_workload(recipe.build(config), name)

    return dataclasses.replace(recipe, build=build)
