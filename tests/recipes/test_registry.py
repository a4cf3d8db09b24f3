import importlib.metadata
import types

import pytest

from paceline.errors import UsageError
from paceline.recipes import registry
from paceline.recipes.registry import find_recipe, recipe_names


def test_shipped_recipes_are_found_under_their_own_name():
    assert "sasrec" in recipe_names()
    for name in registry.BUILT_IN:
        assert find_recipe(name).name == name


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        find_recipe("sasrek")
    assert caught.value.problems[0].do == "use sasrec"


def test_a_recipe_of_another_package(monkeypatch):
    def entry_points(group):
        assert group == "paceline.recipes"
        return [
            types.SimpleNamespace(name="mine", value="paceline.recipes.sasrec.config:RECIPE"),
            types.SimpleNamespace(name="broken", value="no_such_package.config:RECIPE"),
            types.SimpleNamespace(name="odd", value="paceline.recipes.registry:BUILT_IN"),
        ]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert {"mine", "sasrec"} <= set(recipe_names())
    assert find_recipe("mine").name == "sasrec"
    with pytest.raises(UsageError, match="no_such_package"):
        find_recipe("broken")
    with pytest.raises(UsageError, match="is not a"):
        find_recipe("odd")
