"""Triage of problems that are planted into real runs: each cure is found by itself, and two problems at once are not cured."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.telemetry.reader import read_run
from tests.integration.conftest import HERE, WITHOUT_GPU, tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def ailing(*words: str) -> dict[str, str]:
    """The environment in which every rank has these problems."""
    path = os.pathsep.join([str(HERE / "ailments"), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    return WITHOUT_GPU | {"AILMENTS": ",".join(words), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def triage(paceline, out: Path, env: dict[str, str], *arguments: str) -> tuple[int, dict]:
    words = ("--nproc", "2", "--json", "--out", str(out))
    code, printed, error = paceline("triage", *arguments, *words, env=env).finish(850)
    assert printed.startswith("{"), error
    return code, json.loads(printed)


def test_unused_parameters(paceline, tmp_path: Path) -> None:
    code, told = triage(paceline, tmp_path / "out", ailing("unused"), "sasrec", *tiny(), "--steps", "20")
    assert (code, told["state"], told["symptom"]) == (0, "cured", "deadlock")
    # DDP needs either of them, and the first is the cheaper one.
    assert told["cure"]["settings"] == {"parallel.static_graph": True}
    results = [step["result"] for step in told["steps"]]
    assert results[0] == "reproduced"
    assert results[-3:] == ["cured", "came back", "still cured"]


def test_a_compression_hook_that_corrupts(paceline, tmp_path: Path) -> None:
    words = tiny("parallel.compression=bf16", "train.optimizer.lr=0.01")
    arguments = ("sasrec", *words, "--steps", "60")
    code, told = triage(paceline, tmp_path / "out", ailing("corrupt"), *arguments)
    assert (code, told["state"], told["symptom"]) == (0, "cured", "instability")
    assert told["cure"]["settings"] == {"parallel.compression": "none"}
    # Once more: everything is known, nothing is run.
    trials = sorted((tmp_path / "out" / "trials").iterdir())
    assert triage(paceline, tmp_path / "out", ailing("corrupt"), *arguments) == (code, told)
    assert sorted((tmp_path / "out" / "trials").iterdir()) == trials


def test_a_run_whose_loader_deadlocks_goes_on_cured(paceline, tmp_path: Path) -> None:
    env, root = ailing("loader"), tmp_path / "run"
    words = tiny("data.placement=host", "data.num_workers=1", "train.max_steps=24", "checkpoint.every_steps=4")
    # So a few rungs change nothing and are passed over: each trial that stands still takes 40 s.
    words += ["parallel.bucket_mb=100", "parallel.find_unused=true"]
    arguments = ("train", "sasrec", *words, "supervise.policy=halt", "--nproc", "2", "--out", str(root))
    code, _, error = paceline(*arguments, env=env).finish(120)
    assert code == 5, error
    broken = read_run(root)
    assert broken.metrics[-1]["step"] < 12
    code, printed, error = paceline("triage", str(root), "--apply", env=env).finish(850)
    assert code == 0, printed + error
    assert "symptom: deadlock, as the run itself shows" in error
    assert "cured by: no loader processes (data.num_workers=0)" in printed
    record = json.loads((tmp_path / "run-triage" / "triage.json").read_text())
    assert record["reference_from"] == "the run before its symptom"
    assert record["price"] is not None
    cured = read_run(root)
    assert (cured.run.state, cured.metrics[-1]["step"]) == ("finished", 24)
    assert cured.events_of("plan")[-1]["start_step"] >= 4  # it went on, it did not begin anew


def test_two_problems_at_once_are_not_cured(paceline, tmp_path: Path) -> None:
    words = tiny("data.placement=host", "data.num_workers=1")
    code, told = triage(paceline, tmp_path / "out", ailing("unused", "loader"), "sasrec", *words, "--steps", "20")
    assert (code, told["state"], told["cure"]) == (6, "not_cured", None)
    results = {step["name"]: step["result"] for step in told["steps"]}
    assert results["static graph on"] == results["no loader processes"] == "not cured"
