"""Which code a recipe trains with."""

from __future__ import annotations

import dataclasses
import sys
import zipfile
from pathlib import Path

import pytest

import paceline
from paceline.recipes.code import find_package, training_code
from paceline.recipes.registry import BUILT_IN, find_recipe
from tests.architecture.rooms import find_imports, room_of

_HARMLESS = {"errors", "files", "parentage", "telemetry"}
"""What is written, locked and ended: no sum goes through it."""


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_ours_is_all_there_and_that_of_other_recipes_is_not(name: str) -> None:
    code = training_code(find_recipe(name))
    assert [place for places in code.values() for place in places if not place.exists()] == []
    assert [name_ for name_ in code if name_.startswith("paceline.recipes.")] == [f"paceline.recipes.{name}"]
    assert Path(paceline.__file__).parent / "recipes" / "registry.py" in code["paceline.recipes"]


def test_every_room_that_a_training_stands_on_is_among_it() -> None:
    rooms = {name.split(".")[1] for name in training_code(find_recipe("nsa"))}
    trained = {"engine", "launch", "recipes"}
    used = {room_of(each.imported) for each in find_imports() if room_of(each.importer) in trained}
    assert used - {""} - _HARMLESS <= rooms
    assert "engine" in rooms


def test_a_recipe_of_another_package_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "riders").mkdir()
    (tmp_path / "riders" / "__init__.py").touch()
    text = "from paceline.config.sections import RunConfig\nclass Config(RunConfig): pass\n"
    (tmp_path / "riders" / "config.py").write_text(text)
    (tmp_path / "lonely.py").write_text(text)
    (tmp_path / "spread").mkdir()
    (tmp_path / "spread" / "config.py").write_text(text)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.writestr("packed/__init__.py", "")
        packed.writestr("packed/config.py", text)
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    monkeypatch.syspath_prepend(str(tmp_path))
    places = {
        "riders.config": tmp_path / "riders",
        "lonely": tmp_path / "lonely.py",
        "spread.config": tmp_path / "spread",
        "packed.config": tmp_path / "packed.zip",
    }
    for module, place in places.items():
        __import__(module)
        schema = sys.modules[module].Config
        recipe = dataclasses.replace(find_recipe("sasrec"), name="riders", schema=schema)
        assert find_package(recipe) == [place]
        code = training_code(recipe)
        assert code[module.partition(".")[0]] == [place]
        assert not any(name.startswith("paceline.recipes.") for name in code)
