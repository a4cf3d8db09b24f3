"""Finds a recipe by its name: those that ship with the package, and those that others register as entry points.

    [project.entry-points."paceline.recipes"]
    mine = "my_package.config:RECIPE"

A recipe is imported when it is asked for, never to list its name.
"""

from __future__ import annotations

import importlib.metadata
import pkgutil

from paceline.config.nearest import nearest
from paceline.errors import UsageError
from paceline.workload import Recipe

ENTRY_POINTS = "paceline.recipes"

BUILT_IN = {
    "sasrec": "paceline.recipes.sasrec.config:RECIPE",
}


def recipe_names() -> list[str]:
    """Every recipe that can be found here."""
    return sorted(_places())


def find_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    places = _places()
    if name not in places:
        close = nearest(name, places)
        known = ", ".join(sorted(places))
        do = f"use {close}" if close else "use one of them, or a path to a YAML file"
        raise UsageError(f"there is no recipe {name!r} (there are: {known})", "", do)
    try:
        recipe = pkgutil.resolve_name(places[name])
    except (ImportError, AttributeError, ValueError) as error:
        if name in BUILT_IN:
            raise
        what = f"the recipe {name!r} of another package cannot be loaded: {error}"
        raise UsageError(what, f"entry point {places[name]}", "repair or remove that package") from error
    if not isinstance(recipe, Recipe):
        what = f"{places[name]} is not a paceline.workload.Recipe"
        raise UsageError(what, f"entry point {name}", "repair or remove that package")
    return recipe


def _places() -> dict[str, str]:
    others = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return others | BUILT_IN
