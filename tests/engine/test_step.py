"""One optimizer step: the gradient of the weighted mean, however the batch is cut; nothing applied when it is not a number."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.precision import Fp16
from paceline.telemetry.tables import read_table
from tests.engine.conftest import Regression


def train(context, workload=None):
    torch.manual_seed(0)
    trainer = build_trainer(context, workload or Regression())
    trainer.run()
    trainer.close()
    return {name: value.detach().clone() for name, value in trainer._strategy.model.state_dict().items()}


def test_the_first_step_is_that_of_the_weighted_mean(make_context):
    sections = {
        "train": {"max_steps": 1, "global_batch": 40, "micro_batch": 7, "optimizer": {"name": "sgd", "lr": 0.1}},
        "telemetry": {"tensorboard": False, "log_every": 1},
        "evaluate": {"every_epochs": None},
    }
    context = make_context(sections)
    trained = train(context)
    workload = Regression()
    from paceline.engine.seeding import seed_model

    seed_model(0)
    model = workload.build_model(None)
    batch = workload.train_set().fetch(range(40), None)
    loss_sum, weight = workload.loss(model, batch)
    (loss_sum / weight).backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value)
    (row,) = read_table(context.layout.metrics)
    assert row["loss"] == pytest.approx(float((loss_sum / weight).detach()), rel=1e-6)
    assert row["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert row["grad_norm"] > 0, "measured before the gradients are dropped"
    assert row["samples"] == 40
    assert row["units_per_s"] == pytest.approx(row["samples_per_s"])


def test_clipping_bounds_the_update(make_context):
    def sections(clip):
        return {
            "train": {"max_steps": 1, "global_batch": 40, "clip_norm": clip, "optimizer": {"name": "sgd", "lr": 1.0}},
            "telemetry": {"tensorboard": False, "log_every": 1},
            "evaluate": {"every_epochs": None},
        }

    context = make_context(sections(0.01))
    trained = train(context)
    from paceline.engine.seeding import seed_model

    seed_model(0)
    start = Regression().build_model(None).state_dict()
    moved = torch.sqrt(sum(((trained[name] - start[name]) ** 2).sum() for name in start))
    assert float(moved) == pytest.approx(0.01, rel=1e-3)
    assert read_table(context.layout.metrics)[0]["grad_norm"] > 0.02, "the norm before clipping is what is recorded"


def test_fp16_loses_no_step_where_a_sample_weighs_much(make_context, monkeypatch):
    class Heavy(Regression):
        def loss(self, model, batch):
            loss_sum, weight = super().loss(model, batch)
            return loss_sum * 4096, weight * 4096

    built, phases = [], set()

    class Noting(Fp16):
        def weigh(self, *args):
            phases.add(context.pulse.phase)
            super().weigh(*args)

    def build(_, ranks, __):
        built.append(Noting(ranks))
        return built[0]

    monkeypatch.setattr("paceline.engine.build.build_precision", build)
    sections = {
        "train": {"max_steps": 3, "global_batch": 40, "micro_batch": 7},
        "telemetry": {"tensorboard": False, "log_every": 1},
        "evaluate": {"every_epochs": None},
    }
    context = make_context(sections)
    train(context, Heavy())
    assert 4 <= float(built[0].loss_scale) <= 16, "of its samples each weighs 1 to 3 times 4,096"
    assert all(0 < row["grad_norm"] < float("inf") for row in read_table(context.layout.metrics))
    assert phases == {"backward"}, "ranks wait here for one another, which they do not in a forward"


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_a_step_that_is_not_a_number_changes_nothing(make_context, name, fused):
    class Broken(Regression):
        def loss(self, model, batch):
            loss_sum, weight = super().loss(model, batch)
            return loss_sum * float("nan"), weight

    optimizer = {"name": name, "fused": fused} | ({"momentum": 0.9} if name == "sgd" else {"weight_decay": 0.1})
    sections = {
        "train": {"max_steps": 3, "nonfinite": "skip", "optimizer": optimizer},
        "telemetry": {"tensorboard": False},
        "evaluate": {"every_epochs": None},
    }
    trained = train(make_context(sections), Broken())
    from paceline.engine.seeding import seed_model

    seed_model(0)
    for key, value in Regression().build_model(None).state_dict().items():
        assert torch.equal(trained[key], value)


def test_dropout_and_everything_else_repeats_exactly(make_context, tmp_path):
    class Noisy(Regression):
        def build_model(self, setting):
            return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    sections = {
        "train": {"max_steps": 6, "global_batch": 13},
        "telemetry": {"tensorboard": False},
        "evaluate": {"every_epochs": None},
    }
    first = train(make_context(sections), Noisy())
    torch.rand(1000)  # whatever else draws from the global generator in between
    again = train(make_context(sections), Noisy())
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = train(make_context(sections | {"run": {"seed": 1}}), Noisy())
    assert not all(torch.equal(first[name], other[name]) for name in first)
