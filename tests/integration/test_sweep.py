"""A sweep of a real recipe: two cases, by pace and by a validation metric at equal samples."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.cli.main import run_command
from paceline.config.contradictions import Facts
from paceline.recipes.job import load_job
from paceline.telemetry.reader import read_run
from tests.integration.conftest import tiny

ROOT = Path(__file__).parents[2]
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


def test_the_ranks_of_every_case_are_compared_and_the_slow_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fault = {"kind": "slow", "place": "forward", "rank": 1, "step": 5, "share": 4.0, "log": str(tmp_path / "fault")}
    monkeypatch.setenv("FAULT", json.dumps(fault))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "paceline/bench/faults/injected")]))
    plan = "axes: {launch.nproc: [1, 3]}\nsteps: 140\nwarmup_steps: 20\nwindow: 20\nrepeats: 1\nracing: false\nrank_table: true\n"
    write_plan(tmp_path / "plan.yaml", plan)
    assert run_command(["sweep", "plan.yaml", "--out", "s", "loss_tolerance=null"]) == 0
    ranks = {trial["case"]: trial["ranks"] for trial in read(Path("s"))["trials"]}
    assert ranks["nproc=1"]["sentence"] == "one rank: there is nothing to compare"
    found = ranks["nproc=3"]
    assert (found["verdict"], [each["rank"] for each in found["slow"]]) == ("slow", [1]), found["sentence"]
    assert found["slow"][0]["phase"] == "forward"
    assert [each["rank"] for each in found["table"]] == [0, 1, 2]
    assert found["table"][1]["forward_ms"] > 2 * found["table"][0]["forward_ms"]
    assert found["table"][1]["wait_ms"] < found["table"][0]["wait_ms"]
    said = Path("s/driver.log").read_text().splitlines()[-3:]
    assert any(line.endswith(found["sentence"]) and "ranks: nproc=3, round 1: " in line for line in said), said
    for name in ("summary.md", "report.md", "report.html", "ranks.csv"):
        assert "rank 1 makes a step" in (Path("s") / name).read_text()


def test_a_script_that_has_never_heard_of_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as its README tells it, shorter: swept, launched and reported."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))  # its `python`
    folder, out = "examples/foreign-script", tmp_path / "s"
    words = ["steps=60", "warmup_steps=20", "window=20", "repeats=1", "racing=false"]
    axes = ["axes.params.batch=[64]", "axes.params.threads=[1]"]
    assert run_command(["sweep", f"{folder}/plan.yaml", *words, *axes, "--out", str(out)]) == 0
    described = read(out)
    (trial,) = described["trials"]
    assert trial["status"] == "ok"
    assert trial["metrics"]["error"] > 0
    assert run_command(["report", str(out / trial["directory"]), "--out", str(tmp_path / "r")]) == 0
    assert load_job(str(out / "best.yaml"), environ={}).config.train.max_steps == 60, "its words name it"
    job = load_job(f"{folder}/run.yaml", environ={})
    job.check(Facts(1, 0))
    assert "paceline" not in (ROOT / folder / "train.py").read_text().split('"""', 2)[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_of_real_trainings_killed_at_any_moment_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "axes: {data.num_workers: [0, 1]}\nsteps: 200\nwarmup_steps: 10\nwindow: 10\nrepeats: 1\nracing: false\n"
    write_plan(tmp_path / "plan.yaml", plan)
    chance = random.Random(8)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(5):
        command = [sys.executable, "-m", "paceline", "sweep", "plan.yaml", "--out", "s"]
        with open("log", "ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            driver.wait(chance.uniform(2, 15))
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert run_command(["sweep", "plan.yaml", "--out", "s"]) == 0
    trials = read(Path("s"))["trials"]
    assert [trial["status"] for trial in trials].count("ok") == 2
    assert {trial["status"] for trial in trials} <= {"ok", "interrupted"}
    for trial in trials:
        if trial["status"] == "ok":
            assert len(read_run(Path("s") / trial["directory"]).run.attempts) == 1
    left = [p for p in psutil.process_iter() if _is_of(p, tmp_path)]
    assert left == []


def _is_of(process: psutil.Process, place: Path) -> bool:
    try:
        return any(str(place) in word for word in process.cmdline()) and process.pid != os.getpid()
    except psutil.Error:
        return False
