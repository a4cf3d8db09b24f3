from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.telemetry.failure import parse_failure
from paceline.trained import load_model
from paceline.worker import model as module
from paceline.worker.model import evaluate_splits, main
from paceline.workload import Draw, Recommendation, Recommended
from tests.saved_runs import RUN_ID, content_of, log_validation, save_run


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are not started by somebody whose end should end them."""
    monkeypatch.setattr(module, "die_with_agent", lambda: None)


def test_every_split_is_evaluated_as_it_is_configured(tmp_path: Path) -> None:
    save_run(tmp_path / "run", "evaluate.max_samples=101", "evaluate.block=16", best=3)
    trained = load_model(tmp_path / "run")
    found = evaluate_splits(trained)
    assert (found["device"], found["precision"]) == ("cpu", "fp32")
    assert [(each["split"], each["num_samples"]) for each in found["splits"]] == [("validation", 101), ("test", 101)]
    # The same in one go, written out.
    for each in found["splits"]:
        batch = trained.workload.evaluation_set(each["split"]).fetch(range(101), Draw(0, 0))
        with torch.no_grad():
            ranks = trained.workload.predict(trained.model, batch)["rank"]
        expected = trained.workload.metrics(each["split"], {"rank": ranks.numpy().astype(np.int64)})
        assert each["metrics"] == expected


def test_the_precision_is_the_recorded_one(tmp_path: Path) -> None:
    save_run(tmp_path / "run", best=3)
    assert evaluate_splits(load_model(tmp_path / "run"), "bf16")["precision"] == "bf16"


def test_one_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert (answer["step"], answer["run_id"]) == (6, RUN_ID)
    assert answer["checkpoint"].endswith("step_00000006")
    assert "no best checkpoint" in answer["note"]


def test_the_files_of_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = save_run(tmp_path / "run", best=3)
    log_validation(
        layout,
        {"step": 3, "split": "validation", "num_samples": 153, "hr_10": 0.25, "ndcg_10": float("nan")},
        {"step": 6, "split": "validation", "num_samples": 153, "hr_10": 0.5, "ndcg_10": 0.4},
    )
    before = content_of(tmp_path / "run")
    (tmp_path / "out").mkdir()
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "out")]) == 0
    answer = json.loads(capsys.readouterr().out)
    model = load_model(tmp_path / "run").model
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert (tmp_path / "out" / "config.yaml").read_text() == layout.config.read_text()
    record = json.loads((tmp_path / "out" / "export.json").read_text(), parse_constant=pytest.fail)
    assert (record["v"], record["recipe"], record["step"], record["run"]) == (1, "sasrec", 3, RUN_ID)
    assert record["checkpoint"] == "step_00000003"
    assert record["num_parameters"] == sum(value.numel() for value in model.parameters()) == answer["num_parameters"]
    (row,) = record["metrics"]
    assert (row["split"], row["hr_10"], row["ndcg_10"]) == ("validation", 0.25, None)
    assert answer["bytes"] == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert content_of(tmp_path / "run") == before


class Tied(torch.nn.Module):
    """Two names for one weight, a number by itself, and a type of two bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3, bias=False)
        self.second = torch.nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.scale = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.bfloat16))
        self.register_buffer("mean", torch.arange(6.0).reshape(2, 3).T)


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    save_run(tmp_path / "run", best=3)
    trained = load_model(tmp_path / "run")
    model = Tied()
    object.__setattr__(trained, "model", model)
    answer = module.write_files(trained, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == {"first.weight", "scale", "mean"}
    assert answer["num_parameters"] == 10
    assert all(torch.equal(weights[name], model.state_dict()[name]) for name in weights)


class Recommending:
    """A workload that recommends, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def recommend(
        self, model: torch.nn.Module, *, user: str | None, history: Sequence[str] | None, top: int, keep_seen: bool
    ) -> Recommendation:
        assert not torch.is_grad_enabled()
        self.asked.append((user, history, top, keep_seen))
        shown = [Recommended("b", "Été", float("nan")), Recommended("c", None, 0.5)]
        return Recommendation(user, [Recommended("a", None, None)], shown, "no titles")


@pytest.fixture
def recommending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recommending:
    """The workload of the run in tmp_path/run, in place of the recipe's own."""
    workload = Recommending()
    save_run(tmp_path / "run")
    monkeypatch.setattr(module, "load_model", lambda *words: replace(load_model(*words), workload=workload))
    return workload


def test_a_recommendation(tmp_path: Path, recommending: Recommending, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", str(tmp_path / "run"), "--user=-7", "--top", "2", "--keep-seen"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line, parse_constant=pytest.fail)
    assert (answer["user"], answer["step"], answer["run_id"]) == ("-7", 6, RUN_ID)
    assert answer["history"] == [{"item": "a", "title": None, "score": None}]
    assert answer["items"] == [
        {"item": "b", "title": "Été", "score": None},
        {"item": "c", "title": None, "score": 0.5},
    ]
    assert "no best checkpoint" in answer["note"]
    assert answer["note"].endswith("; no titles")
    assert main(["recommend", str(tmp_path / "run"), '--history=["1", "-2"]']) == 0
    assert recommending.asked == [("-7", None, 2, True), (None, ["1", "-2"], 10, False)]


def test_a_recipe_that_does_not_recommend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run(tmp_path / "run")
    monkeypatch.setattr(module, "load_model", lambda *words: replace(load_model(*words), workload=object()))
    assert main(["recommend", str(tmp_path / "run"), "--user=1"]) == 2
    record = parse_failure(capsys.readouterr().err)
    assert record is not None
    assert record["error"] == "UsageError"
    assert "sasrec recommends nothing" in record["problems"][0]["what"]


def test_a_recipe_without_a_pipeline(
    tmp_path: Path, recommending: Recommending, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recommend", str(tmp_path / "run"), "--user=1", '--pipeline={"block_category": [3]}']) == 2
    record = parse_failure(capsys.readouterr().err)
    assert record is not None
    assert "has no --block-category" in record["problems"][0]["what"]


TENREC = ("data.users=60", "data.items=120", "data.rows=1500", "data.negatives=7", "model.width=16", "model.heads=2")


def test_two_stages_through_the_pipeline_from_a_run_and_from_its_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    towers, ranker, exported = tmp_path / "towers", tmp_path / "ranker", tmp_path / "exported"
    save_run(towers, *TENREC, recipe="tenrec-retrieval", steps=(3,))
    save_run(ranker, *TENREC, f"evaluate.retrieval={towers}", recipe="tenrec", steps=(4,))
    words = ["--user=17", "--top", "3", '--pipeline={"block": ["5"]}']
    assert main(["recommend", str(ranker), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["items"]) == 3
    assert found["user"] == "17"
    assert (found["step"], found["run_id"]) == (4, RUN_ID)
    by_name = {stage["name"]: stage for stage in found["stages"]}
    assert {stage["status"] for stage in found["stages"]} == {"ok", "skipped"}
    assert by_name["towers"]["count"] > 0
    exported.mkdir()
    assert main(["export", str(ranker), "--to", str(exported)]) == 0
    assert main(["recommend", str(exported), *words]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["items"] == found["items"]
    assert (again["step"], again["run_id"], again["checkpoint"]) == (4, RUN_ID, str(exported))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--user=61"], "there is no user '61'"),
        (["--user=17", "--top=-2"], "-2 items"),
        (["--user=17", '--pipeline={"retrieval": "nowhere"}'], "there is no trained run here"),
    ],
)
def test_what_two_stages_cannot_answer(
    tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "ranker", *TENREC, recipe="tenrec", steps=(4,))
    assert main(["recommend", str(tmp_path / "ranker"), *words]) == 2
    record = parse_failure(capsys.readouterr().err)
    assert record is not None
    assert says in record["problems"][0]["what"]


def test_a_failure_is_told_in_a_line_for_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", best=3)
    assert main(["evaluate", str(tmp_path / "run"), "--checkpoint", "bset"]) == 2
    captured = capsys.readouterr()
    record = parse_failure(captured.err)
    assert record is not None
    assert record["error"] == "UsageError"
    assert "load_model" in record["traceback"]
    assert captured.out == ""
