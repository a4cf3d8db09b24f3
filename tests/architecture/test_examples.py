"""What docs/recipes.md and docs/sdk.md show is what the examples and the SDK are."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from paceline import start_run
from paceline.telemetry.pulse import PHASES
from paceline.telemetry.sdk import TrackedRun
from tests.architecture.rooms import ROOT
from tests.architecture.test_docs import BLOCKS, Block

SDK = (ROOT / "docs" / "sdk.md").read_text()
RECIPE = ROOT / "examples" / "external-recipe"
SHOWN = [b for b in BLOCKS if b.document.name == "recipes.md" and b.language in ("python", "toml")]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: f"{block.heading} ({block.language})")
def test_lines_of_a_recipe_stand_in_the_example(block: Block) -> None:
    files = [*RECIPE.glob("*.toml"), *(RECIPE / "paceline_waves").glob("*.py")]
    lines = {line.strip() for file in files for line in file.read_text().splitlines()}
    assert [line for line in block.lines if line.strip() not in lines] == []


def test_every_argument_of_start_run_is_documented() -> None:
    parameters = set(inspect.signature(start_run).parameters) - {"out"}
    table = re.findall(r"^\| (.*?) \|", SDK.split("## Start")[1].split("## While")[0], re.MULTILINE)
    assert {name for row in table for name in re.findall(r"`(\w+)`", row)} == parameters


def test_every_public_member_of_a_run_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"\brun\.([a-z]\w*)", SDK)) - {"json"}
    source = ast.parse(inspect.getsource(TrackedRun).strip()).body[0]
    stored = (node for node in ast.walk(source) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    assigned = {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}
    public = {name for name in {*vars(TrackedRun), *assigned} if not name.startswith("_")}
    assert documented == public


def test_every_argument_of_a_step_and_every_phase_is_documented() -> None:
    text = SDK.split("## While")[1].split("## How")[0]
    named = set(re.findall(r"`(\w+)`", text))
    asked = set(inspect.signature(TrackedRun.step).parameters) - {"self", "loss"}
    assert (asked | set(PHASES)) - named - {"end", "step"} == set()


def test_the_example_imports_no_torch_to_be_explained() -> None:
    tree = ast.parse((RECIPE / "paceline_waves" / "config.py").read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    assert not [
        name
        for name in modules
        if name.split(".")[0] in ("torch", "numpy") or (name.endswith("workload") and "waves" in name)
    ]
