"""Every shipped YAML loads without a problem, alone on one rank and on several, and travels with the package."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.config.contradictions import Facts
from paceline.playbook.playbook import load_playbook
from paceline.playbook.preview import check_play, describe_play
from paceline.playbook.selection import select
from paceline.playbook.stage import Stage
from paceline.recipes.job import load_job
from paceline.recipes.registry import BUILT_IN, find_recipe
from paceline.sweep.matrix import build_matrix
from paceline.sweep.plan import load_plan
from paceline.triage.changes import plan_change
from paceline.triage.ladder import load_ladder
from paceline.triage.subject import find_subject
from tests.architecture.rooms import PACKAGE, ROOT

FILES = sorted(path for path in (PACKAGE / "configs").rglob("*") if path.is_file())
CONFIGS = [path for path in FILES if path.parent.name == "configs"]
PLAYBOOKS = [path for path in FILES if path.parent.name == "playbooks"]
PLANS = [path for path in FILES if path.parent.name == "plans"]
GENERATED = {
    "sasrec": ["data.path=null"],
    "nsa": ["data.path=null", "data.source=text"],
    "csa": ["data.source=generated", "model.speech=base", "model.text=base"],
    "tenrec": ["data.path=null"],
}
LADDERS = [path for path in FILES if path.parent.name == "ladders"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_file_loads(path: Path) -> None:
    job = load_job(str(path), environ={})
    if getattr(job.config.data, "path", None) or getattr(job.config.data, "manifest", None):
        # What it was made for is not here; the same settings train on generated data, which is over before a long warm-up.
        job = load_job(str(path), [*GENERATED[job.recipe.name], "train.schedule.warmup_steps=1"], environ={})
    num_samples = len(job.recipe.build(job.config).train_set())
    for world_size in (1, 2, 3):
        job.check(Facts(world_size, num_gpus=0, num_samples=num_samples))
    assert job.identity()["fingerprint"]


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.name)
def test_a_shipped_playbook_could_be_played(path: Path, tmp_path: Path) -> None:
    # What those of a recipe of its own were made for is not here.
    generated = GENERATED.get(path.stem.partition("-")[0], [])
    playbook = load_playbook(path.stem, ["launch.gpus=[]", *generated])
    stage = Stage(playbook, select(playbook, ",".join(playbook.phases)), tmp_path / "out")
    check_play(stage)
    shown = "\n".join(describe_play(stage))
    assert all(f"{name} ({phase.kind})" in shown for name, phase in playbook.phases.items())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_a_shipped_plan_could_be_run(
    path: Path, num_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On what needs no data: everything else is the plan's own."""
    monkeypatch.chdir(tmp_path)
    here = ["data.source=generated", "launch.gpus=[]", f"launch.nproc={num_ranks}"]
    assert run_command(["sweep", path.stem, "--dry-run", *here]) == 0
    plan = load_plan(path.stem, here)
    shown = capsys.readouterr().out
    cases = build_matrix(plan).cases
    assert f"{len(cases)} cases" in shown
    assert {case.placement.world_size for case in cases} == {num_ranks}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", LADDERS, ids=lambda path: path.name)
def test_a_shipped_ladder_has_keys_that_a_recipe_has(path: Path) -> None:
    ladder = load_ladder(path.stem)
    subject = find_subject("sasrec", [], {"launch.nproc": (4, "a test"), "launch.gpus": ([], "a test")})
    changes = [plan_change(rung, subject) for rung in ladder.rungs]
    assert not [change.skip for change in changes if "has no key" in change.skip]
    assert any(not change.skip for change in changes)


def test_nothing_else_lies_there() -> None:
    assert [path for path in FILES if path not in (*CONFIGS, *PLAYBOOKS, *PLANS, *LADDERS)] == []


@pytest.mark.parametrize("name", sorted(name for name in BUILT_IN if find_recipe(name).foreign is None))
def test_every_recipe_has_a_file_of_its_name(name: str) -> None:
    job = load_job(name, environ={})
    assert job.recipe.name == job.config.recipe == name
    assert PACKAGE / "configs" / f"{name}.yaml" in CONFIGS


def test_all_of_them_are_packaged() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["paceline"]
    names = [str(path.relative_to(PACKAGE)) for path in FILES]
    assert names
    assert [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []
