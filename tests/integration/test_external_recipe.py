"""A recipe of another package, found through its entry point: explained, trained, evaluated, as if it were ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import WITHOUT_GPU, Zygote, losses

ROOT = Path(__file__).parents[2]
RUN = """
import sys
sys.path.insert(0, {installed!r})
from paceline.worker.{module} import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the example's package is installed, as pip installs it."""
    folder = tmp_path_factory.mktemp("external")
    shutil.copytree(ROOT / "examples" / "external-recipe", folder / "source")  # a build leaves files beside the source
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command = [*pip, "--no-deps", "--no-build-isolation", "--target", folder / "installed", folder / "source"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    yield folder / "installed"
    shutil.rmtree(folder)


def paceline(installed: Path, *arguments: str, cwd: Path) -> str:
    environment = WITHOUT_GPU | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
    command = [sys.executable, "-m", "paceline", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_it_is_explained_trained_and_evaluated(installed: Path, zygote: Zygote, tmp_path: Path) -> None:
    explained = json.loads(paceline(installed, "explain", "waves", "--json", "--no-sizes", cwd=tmp_path))
    assert explained["values"]["train.epochs"] == {
        "value": 5,
        "origin": "paceline_waves/waves.yaml:17",
        "fingerprint": "operational",
    }
    assert explained["values"]["model.dropout"]["origin"] == "default"

    def run(module: str, ranks: int, *argv: str) -> None:
        script = tmp_path / f"{module}.py"
        script.write_text(RUN.format(installed=str(installed), module=module))
        zygote.start(ranks, list(argv), tmp_path, script=script)
        codes = zygote.wait(60)
        assert codes == [0] * ranks, [path.read_text() for path in tmp_path.glob("console_*.log")]

    def train(name: str, ranks: int) -> Run:
        overrides = ("train.max_steps=12", "train.global_batch=37", "data.jitter=0.1", "telemetry.log_every=1")
        run("__main__", ranks, "waves", *overrides, "evaluate.every_steps=6", "--out", str(tmp_path / name))
        return read_run(tmp_path / name)

    alone, two = train("alone", 1), train("two", 2)
    assert (two.run.state, two.run.recipe, two.run.attempts[0].step) == ("finished", "waves", 12)
    assert [step for step, *_ in losses(two)] == list(range(1, 13))
    for (_, ours, *_), (_, theirs, *_) in zip(losses(two), losses(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5), "the same samples and noise on any number of ranks"
    assert [(row["step"], row["split"]) for row in two.validation] == [
        (6, "validation"),
        (12, "validation"),
        (12, "test"),
    ]
    assert two.validation[1]["mse"] < two.validation[0]["mse"]
    assert two.events_of("baseline")[0]["name"] == "last point"

    run("model", 1, "evaluate", str(tmp_path / "two"), "--checkpoint", "final")
    answer = json.loads((tmp_path / "console_0.log").read_text().splitlines()[-1])
    evaluated = {found["split"]: found["metrics"]["mse"] for found in answer["splits"]}
    assert evaluated == {row["split"]: row["mse"] for row in two.validation if row["step"] == 12}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_commands_of_its_readme(installed: Path, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "external-recipe" / "README.md").read_text()
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("paceline ")]
    assert [words[0] for words in lines] == ["explain", "train", "evaluate"]
    outputs = [paceline(installed, *words, cwd=tmp_path) for words in lines]
    assert "training samples    2,000" in outputs[0]
    assert read_run(tmp_path / "runs" / "waves").run.state == "finished"
    assert "no" not in outputs[2].split()
