import dataclasses
import importlib.metadata
import sys
import types
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.recipes import registry
from paceline.recipes.registry import find_recipe, recipe_names
from paceline.recipes.sasrec.config import RECIPE
from paceline.workload import Objective, Workload, check_metrics


def test_shipped_recipes_are_found_under_their_own_name():
    assert "sasrec" in recipe_names()
    for name in registry.BUILT_IN:
        assert find_recipe(name).name == name


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        find_recipe("sasrek")
    assert caught.value.problems[0].do == "use sasrec"


def test_a_run_of_the_sdk_has_no_recipe_of_ours():
    with pytest.raises(UsageError, match="trained by a script of its own"):
        find_recipe("sdk")


class Whole(Workload):
    """As little as a recipe can write."""

    objective = Objective("error", "min")
    metric_names = ("error",)
    splits = ("validation",)
    build_model = train_set = evaluation_set = loss = predict = metrics = lambda *_: {}


@pytest.fixture
def register(monkeypatch):
    """register(name=recipe, …): entry points of another package."""

    def register(*points, **recipes):
        module = types.ModuleType("other_package")
        vars(module).update(recipes)
        monkeypatch.setitem(sys.modules, "other_package", module)
        listed = [*points, *((name, f"other_package:{name}") for name in recipes)]

        def entry_points(group):
            assert group == "paceline.recipes"
            return [types.SimpleNamespace(name=name, value=value) for name, value in listed]

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    return register


def recipe_of(workload, name="mine", **fields):
    return dataclasses.replace(RECIPE, **({"name": name, "build": lambda config: workload} | fields))


def test_a_recipe_of_another_package(register):
    register(mine=recipe_of(Whole()))
    assert recipe_names() == ["csa", "mine", "nsa", "sasrec", "tenrec", "command"]
    workload = find_recipe("mine").build(None)
    assert isinstance(workload, Whole)
    # What it did not write has a default.
    assert (workload.unit, workload.has_static_shapes, workload.units([1, 2])) == ("samples", False, 2)
    assert (workload.baseline("validation", 1), workload.step_flops(1)) == (None, None)
    assert (workload.observe(None), workload.details()) == ({}, {})


def test_what_is_wrong_with_another_package_is_said(register, tmp_path):
    register(
        ("broken", "no_such_package.config:RECIPE"),
        ("twice", "other_package:twice"),
        ("sasrec", "other_package:sasrec"),
        odd=registry.BUILT_IN,
        alias=recipe_of(Whole()),
        shapeless=recipe_of(Whole(), "shapeless", schema=dict),
        fileless=recipe_of(Whole(), "fileless", config_file=tmp_path / "fileless.yaml"),
        twice=recipe_of(Whole(), "twice"),
    )
    for name, says in {
        "broken": "cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'",
        "odd": "is not a paceline.workload.Recipe",
        "alias": "calls itself 'mine'",
        "shapeless": "no subclass of paceline.config.sections.RunConfig",
        "fileless": "missing from its package",
        "twice": "registered more than once: other_package:twice, other_package:twice",
        "sasrec": "registered more than once: Paceline",
    }.items():
        with pytest.raises(UsageError, match=says) as caught:
            find_recipe(name)
        assert caught.value.problems[0].do, name


def test_a_workload_that_lacks_something_is_refused_before_it_trains(register):
    class Half(Workload):
        objective = Objective("error", "min")
        build_model = train_set = evaluation_set = predict = metrics = lambda *_: {}

    class Stranger:
        splits = ("validation",)

    class Aimless(Whole):
        objective = Objective("accuracy", "max")

    register(
        half=recipe_of(Half(), "half"),
        stranger=recipe_of(Stranger(), "stranger"),
        aimless=recipe_of(Aimless(), "aimless"),
    )
    with pytest.raises(UsageError, match="the workload has no loss, metric_names, splits") as caught:
        find_recipe("half").build(None)
    assert "Half, built by the recipe half" in caught.value.problems[0].where
    with pytest.raises(UsageError, match="baseline, build_model, details"):
        find_recipe("stranger").build(None)
    with pytest.raises(UsageError, match=r"the objective accuracy \(max\) is none of the metrics \(error\)"):
        find_recipe("aimless").build(None)


def test_metrics_without_a_column_are_refused():
    assert check_metrics(Whole(), "validation", {"error": 0.5}) == {"error": 0.5}
    with pytest.raises(UsageError, match="the metrics are error, accuracy, and metric_names says error"):
        check_metrics(Whole(), "validation", {"error": 0.5, "accuracy": 1.0})


def test_the_name_of_another_recipe_stands_for_its_own_file(register, tmp_path):
    from typing import Literal

    from paceline.config import sections
    from paceline.config.sections import IDENTITY, key
    from paceline.recipes.job import load_job

    class Config(sections.RunConfig):
        recipe: Literal["mine"] = key(..., "Which recipe trains.", IDENTITY)

    file = tmp_path / "mine.yaml"
    file.write_text("recipe: mine\ntrain:\n  epochs: 7\n")
    register(mine=recipe_of(Whole(), schema=Config, config_file=Path(file)))
    job = load_job("mine", ["train.global_batch=5"], environ={})
    assert (job.config.train.epochs, job.config.train.global_batch) == (7, 5)
    assert job.origins["train.epochs"] == f"{tmp_path.name}/mine.yaml:3"
