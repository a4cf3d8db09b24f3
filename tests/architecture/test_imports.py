"""One direction from the first commit: only lower ranks are imported, never a sibling, and never in a circle."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

from tests.architecture.rooms import PACKAGE, RANKS, ROOT, Import, find_imports, is_same_room, module_names, room_of


def complaints(imports: list[Import]) -> list[str]:
    found = []
    for entry in imports:
        importer, imported = room_of(entry.importer), room_of(entry.imported)
        if "" in (importer, imported) or is_same_room(importer, imported):
            continue
        if RANKS[imported] >= RANKS[importer]:
            kind = "a sibling" if RANKS[imported] == RANKS[importer] else "upward"
            found.append(
                f"{entry.where}: {importer} (rank {RANKS[importer]}) imports {entry.imported} (rank {RANKS[imported]}): {kind}"
            )
    return found


def test_every_room_has_a_rank() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(RANKS)


def test_only_lower_ranks_are_imported() -> None:
    assert complaints(list(find_imports())) == []


def test_a_recipe_does_not_import_another_recipe() -> None:
    recipes = {f"paceline.recipes.{path.name}" for path in (PACKAGE / "recipes").iterdir() if path.is_dir()}

    def recipe_of(module: str) -> str | None:
        return next((recipe for recipe in recipes if module == recipe or module.startswith(recipe + ".")), None)

    pairs = ((entry, recipe_of(entry.importer), recipe_of(entry.imported)) for entry in find_imports())
    assert [entry.where for entry, importer, imported in pairs if importer and imported not in (None, importer)] == []


def test_what_a_recipe_implements_has_one_address() -> None:
    """That which is documented for recipes of other packages; which file a name lies in is the room's own affair."""
    inner = [entry for entry in find_imports() if entry.imported.startswith("paceline.workload.")]
    assert [entry.where for entry in inner if room_of(entry.importer) != "workload"] == []
    assert inner, "it has files"


def test_there_is_no_circle_between_files() -> None:
    """Late imports are left out: a recipe's torch-free config names its workload, which knows the config."""
    graph: dict[str, set[str]] = {name: set() for name in module_names()}
    for entry in find_imports():
        if entry.imported != entry.importer and not entry.is_late:
            graph[entry.importer].add(entry.imported)
    graphlib.TopologicalSorter(graph).prepare()


def test_what_a_language_model_reads_and_what_computes_it_do_not_know_each_other() -> None:
    data, kernels = "paceline.recipes.nsa.data", "paceline.recipes.nsa.kernels"
    rooms = {data, kernels}
    crossing = [
        entry.where
        for entry in find_imports()
        if {entry.importer.rpartition(".")[0], entry.imported.rpartition(".")[0]} == rooms
    ]
    assert crossing == []
    importers = {entry.importer.rpartition(".")[0] for entry in find_imports()}
    assert rooms <= importers, "they are where this looks"


def test_no_room_has_a_name_that_says_nothing() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert [name for name in module_names() if vague & set(name.split("."))] == []


def test_contributing_has_the_same_ranks() -> None:
    table = {}
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit():
            for room in cells[1].split():
                table[room.strip("`/").removesuffix(".py")] = int(cells[0])
    assert table == {room: rank for room, rank in RANKS.items() if room != "__main__"}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("from paceline.engine.step import Step", "upward"),
        ("import paceline.cli.main", "upward"),
        ("from paceline import engine", "upward"),
        ("from ..engine import step", "upward"),
        ("def late():\n    from paceline.engine import step", "upward"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import paceline.engine.step", "upward"),
        ("from paceline import files", None),
        ("from paceline.telemetry.layout import RunLayout", None),
        ("from . import overrides", None),
        ("import paceline", None),
        ("import engine.paceline", None),
    ],
)
def test_the_walk_sees_every_form_of_import(tmp_path: Path, source: str, says: str | None) -> None:
    for name in ("engine/step", "config/overrides", "cli/main", "telemetry/layout", "files"):
        path = tmp_path / "paceline" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        (path.parent / "__init__.py").touch()
    (tmp_path / "paceline" / "config" / "loading.py").write_text(source)
    found = complaints(list(find_imports(tmp_path / "paceline")))
    assert len(found) == (says is not None)
    assert says is None or (says in found[0] and "config/loading.py" in found[0])


def test_a_sibling_is_seen() -> None:
    (found,) = complaints([Import("paceline.launch.claim", "paceline.engine.step", "launch/claim.py:1")])
    assert "a sibling" in found
