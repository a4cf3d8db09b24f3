"""The recipe as the engine sees it: metrics that mean something, a baseline, both stages together; and that chance is not beaten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.errors import ConfigError, UsageError
from paceline.recipes.job import load_job
from paceline.recipes.tenrec.opening import open_data
from paceline.recipes.tenrec.ranker import LIST
from paceline.recipes.tenrec.retriever import Retriever, load_towers
from paceline.recipes.tenrec.towers import Towers
from paceline.recipes.tenrec.two_stage import TwoStage, find_places
from paceline.workload import Draw, Setting, check_workload
from tests.recipes.tenrec.models import build_workload, evaluate, plant_random_labels, stir, train

pytestmark = pytest.mark.timeout(120)
HERE = Setting(torch.device("cpu"), "own")
MODELS = {
    "transformer": ("tenrec", ()),
    "fastformer": ("tenrec", ("model.mixer=fastformer",)),
    "in_batch": ("tenrec-retrieval", ()),
    "sampled": ("tenrec-retrieval", ("loss.negatives=sampled",)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_the_engine_asks_for(kind: str) -> None:
    name, overrides = MODELS[kind]
    workload = build_workload(*overrides, name=name)
    check_workload(workload, "tenrec")
    model = workload.build_model(HERE)
    found = evaluate(workload, model)
    assert set(found) == set(workload.metric_names)
    assert all(np.isfinite(value) for value in found.values())
    baseline = workload.baseline("test", 50)
    assert baseline[0] == "popularity"
    assert set(baseline[1]) <= set(workload.metric_names)
    assert workload.step_flops(1000) == 1000 * workload.step_flops(1)


@pytest.mark.parametrize("kind", MODELS)
def test_samples_of_an_evaluation_do_not_depend_on_their_block(kind: str) -> None:
    name, overrides = MODELS[kind]
    workload = build_workload(*overrides, name=name)
    model = stir(workload.build_model(HERE))
    whole, parts = (evaluate(workload, model, block=block) for block in (10_000, 37))
    assert whole == pytest.approx(parts, rel=1e-6)


def test_a_ranker_that_knows_the_truth_has_the_best_auc() -> None:
    """Through the samples and metrics of an evaluation, with the chances of the generator in place of a model's."""
    workload = build_workload("data.rows=30000")
    truth, table = workload._opened.truth, workload._opened.table
    samples = workload.evaluation_set("test")
    rows = samples.side.rows
    chances = truth.probability(table.user[rows], table.item[rows])
    share = samples._shares
    logits = np.zeros((len(samples), share.most, LIST))
    actions = samples.fetch(range(len(samples)), Draw(0, 0))["row_actions"].numpy()
    logits[actions >= 0] = np.log(chances / (1 - chances))
    found = workload.metrics("test", {"logits": logits, "actions": actions, "rank": np.zeros(len(samples), np.int64)})
    assert found["auc_click"] > 0.8
    assert found["calibration_click"] == pytest.approx(1, abs=0.1)
    assert (found["ndcg_10"], found["mrr"]) == (1, 1)


def test_a_little_training_beats_popularity() -> None:
    workload = build_workload("data.rows=20000", "model.width=32", "model.layers=1", "evaluate.negatives=3")
    found = evaluate(workload, train(workload, steps=50, batch=64, lr=0.01))
    _, popular = workload.baseline("test", len(workload.evaluation_set("test")))
    assert found["auc_click"] > popular["auc_click"] + 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", MODELS)
def test_random_labels_give_an_auc_of_one_half(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Every action of every model: 30,000 held-out rows, of which 9,000 are positive, leave a deviation of 0.0036 to chance."""
    plant_random_labels(monkeypatch, chance=0.3)
    name, overrides = MODELS[kind]
    sizes = ("data.users=1000", "data.items=500", "data.rows=300000", "model.width=32", "model.layers=1")
    workload = build_workload(*sizes, *overrides, name=name)
    found = evaluate(workload, train(workload, steps=150, batch=256))
    for action in ("click", "follow", "like", "share"):
        assert found[f"auc_{action}"] == pytest.approx(0.5, abs=0.01), action


def test_places_in_lists() -> None:
    items = torch.tensor([[4, 2, 9], [1, 2, 3], [7, 7, 1]])
    assert find_places(items, torch.tensor([9, 5, 7])).tolist() == [2, torch.iinfo(torch.int32).max, 0]


def test_both_stages_together() -> None:
    """A ranker that knows everything, behind towers that find everything, has a planted NDCG of 1; towers that know nothing do not."""
    job = load_job("tenrec-retrieval", ["data.users=100", "data.items=60", "data.rows=6000"])
    opened = open_data(job.config.data)
    towers = stir(Towers(opened.sizes, job.config.model))
    assert isinstance(towers, Towers)
    stages = TwoStage(opened, Retriever(lambda: towers, opened.table), retrieved=60, k=10)
    samples = build_workload("data.users=100", "data.items=60", "data.rows=6000").evaluation_set("test")
    batch = samples.fetch(range(40), Draw(0, 0))

    def know(given: dict[str, torch.Tensor]) -> torch.Tensor:
        users, items = given["users"].numpy(), given["candidates"].numpy()
        assert opened.truth is not None
        chances = opened.truth.probability(np.repeat(users, items.shape[1]), items.reshape(-1))
        return torch.from_numpy(chances).view(*items.shape, -1)

    outputs = {name: values.numpy() for name, values in stages.predict(know, batch).items()}  # type: ignore[arg-type]
    found = stages.measure(outputs)
    assert set(found) == set(stages.metric_names)
    assert found["two_stage_planted_10"] == pytest.approx(1)
    assert found["retrieval_hr_60"] == 1
    assert 0 < found["retrieval_planted_10"] < 0.9
    assert 0 < found["popularity_planted_10"] < 0.9
    assert found["two_stage_ndcg_10"] > found["popularity_ndcg_10"]


def test_retrieval_that_is_not_there_or_not_towers(tmp_path: Path) -> None:
    opened = open_data(load_job("tenrec", []).config.data)
    missing = load_job("tenrec", [f"evaluate.retrieval={tmp_path}"]).config
    with pytest.raises(UsageError, match="no trained run"):
        load_towers(missing, opened.sizes)
    (tmp_path / "config.yaml").write_text("recipe: tenrec\nmodel: {kind: ranker}\n")
    with pytest.raises(ConfigError, match="needs towers"):
        load_towers(missing, opened.sizes)
    (tmp_path / "config.yaml").write_text("recipe: tenrec\nmodel: {kind: towers}\ndata: {split: user}\n")
    with pytest.raises(ConfigError, match="other rows or another split"):
        load_towers(missing, opened.sizes)


def test_a_ranker_is_served_without_the_run_that_it_was_evaluated_with_but_not_trained() -> None:
    workload = build_workload("evaluate.retrieval=runs/nowhere")
    assert "two_stage_ndcg_10" in workload.metric_names
    workload.build_model(HERE)
    with pytest.raises(UsageError, match="there is no trained run here"):
        workload.train_set()
