"""A sweep of a real recipe: two cases, by pace and by a validation metric at equal samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import run_command
from paceline.recipes.job import load_job
from paceline.telemetry.reader import read_run
from tests.integration.conftest import tiny

pytestmark = pytest.mark.timeout(180)
APART = (
    "train.epochs",
    "telemetry.log_every",
    "evaluate.every_epochs",
    "checkpoint.every_epochs",
    "train.global_batch",
)


def write_plan(path: Path, text: str) -> None:
    words = [word for word in tiny() if word.partition("=")[0] not in APART]
    fixed = "".join(f"  {key}: {value}\n" for key, _, value in (word.partition("=") for word in words))
    path.write_text(f"recipe: sasrec\nset:\n{fixed}  launch.gpus: []\n{text}")


def read(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "sweep.json").read_text())
    return found


def test_two_cases_by_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "axes: {data.num_workers: [0, 1]}\nsteps: 30\nwarmup_steps: 10\nwindow: 10\nrepeats: 1\nracing: false\n"
    write_plan(tmp_path / "plan.yaml", plan)
    assert run_command(["sweep", "plan.yaml", "--out", "s", "loss_tolerance=null"]) == 0
    described = read(Path("s"))
    assert [trial["status"] for trial in described["trials"]] == ["ok", "ok"]
    for trial in described["trials"]:
        run = read_run(Path("s") / trial["directory"])
        assert (run.run.state, run.metrics[-1]["step"]) == ("finished", 30)
        assert [row["num_samples"] for row in run.validation] == [1, 1]
        assert not run.layout.checkpoints.exists()
        assert trial["choices"]["precision.mode"]["effective"] == "fp32"
        assert len(trial["windows"]) == 2
        assert trial["samples_per_s"] > 0
    best = load_job("s/best.yaml", environ={})
    assert best.config.train.max_steps is None
    assert best.config.train.epochs == 8
    assert f"num_workers={best.config.data.num_workers}" == described["best"]
    assert (Path("s") / "report.html").exists()


@pytest.mark.slow
def test_a_metric_is_compared_at_equal_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "axes: {train.global_batch: [16, 32]}\nbaseline: {train.global_batch: 32}\nobjective: ndcg_10\nsteps: 30\nwarmup_steps: 10\nwindow: 10\nrepeats: 2\nracing: false\n"
    write_plan(tmp_path / "plan.yaml", plan)
    assert run_command(["sweep", "plan.yaml", "--out", "s", "objective=ndcg_1"]) == 2
    assert run_command(["sweep", "plan.yaml", "--out", "s"]) == 0
    described = read(Path("s"))
    assert described["objective"] == {"name": "ndcg_10", "unit": "", "direction": "max"}
    samples, seeds, metrics = [], [], []
    for trial in described["trials"]:
        run = read_run(Path("s") / trial["directory"])
        samples.append(run.metrics[-1]["samples"])
        seeds.append(load_job(str(run.layout.config), environ={}).config.run.seed)
        metrics.append(trial["metric"])
        assert trial["metric"] == [row for row in run.validation if row["split"] == "validation"][-1]["ndcg_10"]
    assert max(samples) - min(samples) <= 32
    assert sorted(seeds) == [0, 0, 1, 1]
    assert len(set(metrics)) > 1
