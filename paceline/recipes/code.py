"""Where the code lies that a recipe trains with: ours, and that of the package which a recipe of another one comes from.

training_code(recipe)   -> {"paceline.engine": [Path("…/paceline/engine")], …, "paceline.recipes.nsa": [Path("…/recipes/nsa")]}
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import paceline
from paceline.recipes.registry import BUILT_IN
from paceline.workload import Recipe

_PACKAGE = Path(paceline.__file__).parent
_ROOMS = ("config", "engine", "launch", "worker", "workload", "cores.py")
"""What can change a sum: commands, records and reports cannot. The launcher chooses threads and the environment of the ranks."""


def training_code(recipe: Recipe) -> dict[str, list[Path]]:
    """By the name of the package or module; other recipes are not among it."""
    code = {f"paceline.{room.removesuffix('.py')}": [_PACKAGE / room] for room in _ROOMS}
    shared = _PACKAGE / "recipes"
    code["paceline.recipes"] = sorted(shared.glob("*.py"))
    if recipe.name in BUILT_IN:
        code[f"paceline.recipes.{recipe.name}"] = [shared / recipe.name]
    elif places := find_package(recipe):
        code[_top_of(recipe)] = places
    return code


def find_package(recipe: Recipe) -> list[Path]:
    """The directories or files of the whole package that a recipe comes from; of one in an archive, that archive."""
    spec = importlib.util.find_spec(_top_of(recipe))
    if spec is None:
        return []
    # Without an __init__.py it is in as many directories as there are.
    found = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    return [_find_file(Path(place)) for place in found]


def _find_file(place: Path) -> Path:
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _top_of(recipe: Recipe) -> str:
    return recipe.schema.__module__.partition(".")[0]
