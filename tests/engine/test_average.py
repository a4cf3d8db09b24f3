"""The moving average of the weights: its arithmetic, and that looking at it leaves the training alone."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.average import Average, decay_at
from paceline.engine.build import build_trainer
from paceline.errors import CheckpointError
from tests.engine.checkpoint.conftest import build_parts
from tests.engine.conftest import Regression


def test_the_decay_grows_up_to_the_one_that_was_asked_for():
    assert [round(decay_at(0.5, step), 3) for step in (1, 5, 10, 11, 1000)] == [0.091, 0.333, 0.5, 0.5, 0.5]
    assert decay_at(0.999, 90) == 0.9


def test_only_applied_steps_count():
    model = build_parts().model
    average = Average(model, 0.9)
    before = average.tensors()
    first = {name: value.clone() for name, value in before.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0
    average.update(1000, torch.ones(()))
    assert all(torch.equal(value, first[name]) for name, value in average.tensors().items())
    average.update(1000, torch.zeros(()))
    for name, value in average.tensors().items():
        torch.testing.assert_close(value, first[name] + 0.1)
    assert "frozen" not in before, "it never changes"
    assert set(before) == {"embedding.weight", "norm.weight", "norm.bias"}, "tied weights once"


def test_the_average_takes_the_weights_place_and_leaves_it():
    model = build_parts().model
    average = Average(model, 0.9)
    averaged = average.tensors()["embedding.weight"].clone()
    with torch.no_grad():
        model.embedding.weight += 1.0
    address, weight = model.embedding.weight.data_ptr(), model.embedding.weight.detach().clone()
    with average.in_place():
        assert torch.equal(model.embedding.weight, averaged)
        assert torch.equal(model.output.weight, averaged), "tied weights stay tied"
    assert torch.equal(model.embedding.weight, weight)
    assert model.embedding.weight.data_ptr() == address, "a CUDA graph reads from there"


def test_another_models_average_is_refused():
    average = Average(build_parts().model, 0.9)
    tensors = average.tensors()
    for wrong in (
        {name: value for name, value in tensors.items() if name != "norm.bias"},
        tensors | {"norm.bias": torch.zeros(2)},
        tensors | {"more": torch.zeros(2)},
    ):
        with pytest.raises(CheckpointError, match=r"norm\.bias|more"):
            average.load(wrong, "there")


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_was_left_out_moves_no_average(make_context, fused):
    class Broken(Regression):
        def loss(self, model, batch):
            loss_sum, weight = super().loss(model, batch)
            return loss_sum * float("nan"), weight

    sections = {
        "train": {"max_steps": 3, "nonfinite": "skip", "optimizer": {"ema": 0.5, "fused": fused}},
        "telemetry": {"tensorboard": False},
        "evaluate": {"every_epochs": None},
    }
    trainer = build_trainer(make_context(sections), Broken())
    before = {name: value.clone() for name, value in trainer._average.tensors().items()}
    trainer.run()
    trainer.close()
    assert all(torch.equal(value, before[name]) for name, value in trainer._average.tensors().items())
