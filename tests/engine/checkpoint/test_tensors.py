"""Tensors by canonical names: what is collected comes back bit for bit, and what does not fit is named."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.checkpoint.tensors import (
    MODEL,
    OPTIMIZER,
    PRECISION,
    collect_tensors,
    is_volatile,
    load_moments,
    load_weights,
    model_tensors,
)
from paceline.engine.precision import Fp16, Precision
from paceline.engine.ranks import Ranks
from paceline.errors import CheckpointError
from tests.engine.checkpoint.conftest import Parts, build_parts

ALONE = Ranks(0, 1, torch.device("cpu"), "none", "")


def collect(parts: Parts) -> dict[str, torch.Tensor]:
    tensors = collect_tensors(parts.strategy, parts.optimizer, parts.precision)
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def restore(parts: Parts, tensors: dict[str, torch.Tensor]) -> None:
    load_weights(parts.model, part(tensors, MODEL), "here")
    load_moments(parts.strategy, parts.optimizer, part(tensors, OPTIMIZER).items(), "here")
    parts.precision.load(part(tensors, PRECISION))


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adamw", "weight_decay": 0.1},
        {"name": "adamw", "fused": False},
        {"name": "adam"},
        {"name": "sgd", "momentum": 0.9},
        {"name": "sgd", "momentum": 0.9, "fused": False},
        {"name": "sgd", "momentum": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Precision, Fp16])
def test_what_is_collected_goes_on_bit_for_bit(optimizer: dict, kind: type[Precision]) -> None:
    def build(seed: int) -> Parts:
        return build_parts(seed, Fp16(ALONE) if kind is Fp16 else Precision(), **optimizer)

    first, second = build(1), build(2)
    first.train(range(5))
    if kind is Fp16:
        first.precision.apply(first.optimizer, torch.ones(()))  # an overflow: the scale is not where it began
    saved = collect(first)
    restore(second, saved)
    assert {name: value.tolist() for name, value in collect(second).items()} == {
        name: value.tolist() for name, value in saved.items()
    }
    for parts in (first, second):
        parts.train(range(5, 9))
    after, expected = collect(second), collect(first)
    assert set(after) == set(expected)
    for name, value in expected.items():
        assert torch.equal(after[name], value), name
    assert not torch.equal(saved["model.embedding.weight"], expected["model.embedding.weight"])


def test_names_are_canonical() -> None:
    parts = build_parts(precision=Fp16(ALONE), name="adamw")
    parts.train(range(1))
    assert set(collect(parts)) == {
        "model.embedding.weight",  # output.weight is the same tensor
        "model.norm.weight",
        "model.norm.bias",
        "model.norm.running_mean",
        "model.norm.running_var",
        "model.norm.num_batches_tracked",
        "model.frozen",
        *(
            f"optimizer.{entry}.{name}"
            for entry in ("exp_avg", "exp_avg_sq", "step")
            for name in ("embedding.weight", "norm.weight", "norm.bias")
        ),
        "precision.loss_scale",
        "precision.good_steps",
        "precision.skipped_steps",
        "precision.weighed",
    }


def test_tied_weights_stay_tied() -> None:
    first, second = build_parts(1), build_parts(2)
    load_weights(second.model, {name: value.detach() for name, value in model_tensors(first.model).items()}, "here")
    assert second.model.output.weight is second.model.embedding.weight
    assert torch.equal(second.model.output.weight, first.model.embedding.weight)


def test_only_updates_change_what_is_not_volatile() -> None:
    parts = build_parts(precision=Fp16(ALONE))
    parts.train(range(1))
    tensors = collect_tensors(parts.strategy, parts.optimizer, parts.precision)
    volatile = {name for name, tensor in tensors.items() if is_volatile(name, tensor)}
    assert volatile == {
        name for name in tensors if name.startswith("precision.") or "running" in name or "tracked" in name
    }


def test_weights_that_do_not_fit_are_named_and_nothing_is_changed() -> None:
    parts = build_parts(1)
    whole = {name: value.detach().clone() for name, value in model_tensors(parts.model).items()}
    before = collect(parts)
    for change, says in (
        ({"frozen": None}, "frozen is missing"),
        ({"extra": torch.zeros(1)}, "the model has no extra"),
        ({"norm.weight": torch.zeros(7)}, r"norm.weight is float32 \(7,\), not float32 \(6,\)"),
        ({"norm.weight": torch.zeros(6, 1)}, r"norm.weight is float32 \(6, 1\), not float32 \(6,\)"),
        ({"norm.weight": torch.zeros(6, dtype=torch.float16)}, r"norm.weight is float16 \(6,\), not float32 \(6,\)"),
        ({"norm.num_batches_tracked": torch.tensor(1.0)}, r"is float32 \(\), not int64 \(\)"),
    ):
        weights = {name: value for name, value in (whole | change).items() if value is not None}
        with pytest.raises(CheckpointError, match=says) as caught:
            load_weights(parts.model, weights, "runs/a")
        assert caught.value.problems[0].where == "runs/a"
    others = {f"layer{i}": torch.zeros(1) for i in range(9)}
    with pytest.raises(CheckpointError, match="the model has no layer4 and 4 more"):
        load_weights(parts.model, whole | others, "runs/a")
    assert all(torch.equal(value, before[name]) for name, value in collect(parts).items())


def test_moments_that_do_not_fit_are_named() -> None:
    parts = build_parts(1, name="adamw")
    parts.train(range(1))
    whole = part(collect(parts), OPTIMIZER)
    for change, says in (
        ({"step.nobody": torch.tensor(1.0)}, "no trainable parameter 'nobody'"),
        ({"exp_avg.frozen": torch.zeros(3)}, "no trainable parameter 'frozen'"),
        ({"exp_avg.norm.bias": torch.zeros(5)}, r"exp_avg of norm.bias is \(5,\), not \(6,\)"),
        ({"exp_avg_sq.norm.bias": None}, "it has exp_avg, step, not exp_avg, exp_avg_sq, step"),
        ({"momentum_buffer.norm.bias": torch.zeros(6)}, "it has exp_avg, exp_avg_sq, momentum_buffer, step"),
    ):
        moments = {name: value for name, value in (whole | change).items() if value is not None}
        with pytest.raises(CheckpointError, match=says) as caught:
            load_moments(parts.strategy, parts.optimizer, moments.items(), "runs/a")
        assert caught.value.problems[0].where == "runs/a"
        assert "--init-from" in caught.value.problems[0].do
    sgd = build_parts(1, name="sgd", momentum=0.9)
    with pytest.raises(CheckpointError, match="it has exp_avg, exp_avg_sq, step, not momentum_buffer"):
        load_moments(sgd.strategy, sgd.optimizer, whole.items(), "runs/a")


def test_rates_and_decays_stay_as_configured() -> None:
    first = build_parts(1, name="adamw", lr=0.5, weight_decay=0.5, no_decay=[])
    first.train(range(1))
    second = build_parts(2, name="adamw", lr=0.25, weight_decay=0.125, no_decay=[])
    restore(second, collect(first))
    assert [(group["lr"], group["weight_decay"]) for group in second.optimizer.param_groups] == [(0.25, 0.125)]
