"""docs/add-a-recipe.md and docs/own-script.md: the files that they show, as they stand, installed, trained and reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.recipes.job import load_job
from paceline.telemetry.reader import Run, read_run
from tests.architecture.rooms import ROOT
from tests.architecture.test_docs import BLOCKS
from tests.integration.conftest import WITHOUT_GPU, Zygote, losses, zygote  # noqa: F401

WORKER = """
import sys
sys.path.insert(0, {installed!r})
from paceline.worker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def write_files(document: str, folder: Path) -> list[str]:
    """The files that a page shows: blocks that begin with a comment that is a name."""
    names = []
    for block in BLOCKS:
        named = re.fullmatch(r"# ([\w./-]+\.\w+)", block.lines[0]) if block.document.name == document else None
        if named is not None:
            names.append(named[1])
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(block.lines) + "\n")
    return names


def run(*words: str, cwd: Path, also: Path | None = None) -> str:
    environment = WITHOUT_GPU | {"PYTHONPATH": os.pathsep.join([str(ROOT), *([str(also)] if also else [])])}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def spirals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed the recipe of the page."""
    folder = tmp_path_factory.mktemp("spirals")
    source = folder / "spirals"
    assert write_files("add-a-recipe.md", source) == [
        "pyproject.toml",
        "paceline_spirals/config.py",
        "paceline_spirals/workload.py",
        "spirals.yaml",
    ]
    (source / "spirals.yaml").rename(source / "paceline_spirals" / "spirals.yaml")
    (source / "paceline_spirals" / "__init__.py").touch()
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run(*pip, "--no-build-isolation", "--target", str(folder / "installed"), str(source), cwd=folder)
    return folder / "installed"


@pytest.mark.timeout(180)
def test_the_recipe_of_the_page_is_found_and_trains(
    spirals: Path,
    zygote: Zygote,  # noqa: F811
    tmp_path: Path,
) -> None:
    told = json.loads(run("-m", "paceline", "explain", "spirals", "--json", "--no-sizes", cwd=tmp_path, also=spirals))
    assert told["values"]["train.epochs"]["origin"] == "paceline_spirals/spirals.yaml:6"
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(installed=str(spirals)))

    def train(name: str, ranks: int, *typed: str) -> Run:
        zygote.start(ranks, ["spirals", *typed, "--out", str(tmp_path / name)], tmp_path, script=script)
        codes = zygote.wait(60)
        assert codes == [0] * ranks, [path.read_text() for path in tmp_path.glob("console_*.log")]
        return read_run(tmp_path / name)

    short = ("train.epochs=null", "train.max_steps=20", "telemetry.log_every=1", "evaluate.every_epochs=10")
    alone, two = train("alone", 1, *short), train("two", 2, *short)
    pairs = list(zip(losses(alone), losses(two), strict=True))
    assert len(pairs) == 20
    assert all(ours[1] == pytest.approx(theirs[1], rel=1e-4) for ours, theirs in pairs), "any number of ranks"
    whole = train("two", 2, "telemetry.log_every=1", "evaluate.every_epochs=10")
    assert [attempt.step for attempt in whole.run.attempts] == [20, 600]
    accuracy = [row["accuracy"] for row in whole.validation if row["split"] == "test"]
    assert accuracy[-1] > 0.95 > accuracy[0]


@pytest.mark.timeout(120)
def test_the_script_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_files("own-script.md", tmp_path) == ["fit.py", "fit.yaml", "fit_sdk.py"]
    run("-m", "paceline", "train", "fit.yaml", "--out", "runs/fit", "supervise.enabled=false", cwd=tmp_path)
    found = read_run(tmp_path / "runs" / "fit")
    assert (found.run.state, found.metrics[-1]["step"]) == ("finished", 200)
    assert found.metrics[-1]["loss"] < 1e-3 < found.metrics[0]["loss"]
    assert float(found.validation[-1]["slope_error"]) < 0.01
    monkeypatch.chdir(tmp_path)
    job = load_job("fit.yaml", ["params.lr=0.5", "train.max_steps=100"], environ={})
    assert job.recipe.foreign is not None
    assert {"--lr=0.5", "--steps=100"} <= set(job.recipe.foreign.argv(job.config, tmp_path, 1))


@pytest.mark.timeout(120)
def test_the_script_with_the_sdk(tmp_path: Path) -> None:
    write_files("own-script.md", tmp_path)
    run("fit_sdk.py", cwd=tmp_path)
    found = read_run(tmp_path / "runs" / "fit-sdk")
    assert (found.run.state, found.run.attempts[-1].step, found.run.recipe) == ("finished", 200, "sdk")
    assert found.metrics[-1]["loss"] < 1e-3
    assert found.validation[-1]["slope_error"] < 0.01
