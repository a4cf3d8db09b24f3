"""The recipe on several ranks: the loss and the weights of one process that sees the whole batch, for every stage and any micro-batch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from paceline.engine.order import SampleOrder
from paceline.engine.ranks import Ranks
from paceline.engine.seeding import seed_model
from paceline.recipes.csa.workload import CsaWorkload
from paceline.workload import Draw
from tests.engine.conftest import on_ranks, zygote  # noqa: F401
from tests.engine.test_contrast import assert_close, train
from tests.recipes.csa.aligners import CPU, build, whole_loss

GLOBAL_BATCH, STEPS, LR = 8, 2, 0.05
OPTIMIZER = {"name": "sgd", "lr": LR}


def build_small(*overrides: str) -> CsaWorkload:
    return build("data.max_seconds=1.5", "data.min_seconds=0.3", *overrides)


def expect(*overrides: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    """By autograd of the whole batch, without the engine: what two steps of SGD make of the weights is the sum of their gradients."""
    workload = build_small(*overrides)
    seed_model(0)
    model = workload.build_model(CPU)
    samples = workload.train_set()
    order = SampleOrder(len(samples), GLOBAL_BATCH, STEPS, 0)
    losses = []
    for step in range(STEPS):
        loss, weight = whole_loss(workload, model, samples.fetch(order.batch(0, step), Draw(0, 0)))
        model.zero_grad()
        (loss / weight).backward()
        with torch.no_grad():
            for parameter in filter(lambda one: one.requires_grad, model.parameters()):
                assert parameter.grad is not None
                parameter -= LR * parameter.grad
        losses.append(float(loss.detach() / weight))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


def compare(
    root: Path, ranks: Ranks | None, stage: int, micro_batch: int | None, *overrides: str, is_recomputed: bool = False
) -> None:
    weights, losses = expect(*overrides)
    changes = {"optimizer": OPTIMIZER, "global_batch": GLOBAL_BATCH, "max_steps": STEPS, "micro_batch": micro_batch}
    changes["activation_checkpointing"] = is_recomputed
    found, reported, trainer = train(root, ranks, build_small(*overrides), stage=stage, **changes)
    assert_close(found, weights, (stage, micro_batch))
    if trainer._context.ranks.is_first:
        assert reported == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_one_rank(tmp_path: Path, micro_batch: int | None) -> None:
    compare(tmp_path, None, 0, micro_batch)


def test_computed_again_in_backward(tmp_path: Path) -> None:
    compare(tmp_path, None, 0, None, is_recomputed=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, 3])
def test_ranks(on_ranks, count: int) -> None:  # noqa: F811
    on_ranks(count, every_stage)


def every_stage(ranks: Ranks) -> None:
    for stage in range(4):
        for micro_batch in (None, 2):
            with tempfile.TemporaryDirectory() as root:
                compare(Path(root), ranks, stage, micro_batch)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_with_a_frozen_text_encoder(on_ranks) -> None:  # noqa: F811
    on_ranks(2, every_stage_frozen)


def every_stage_frozen(ranks: Ranks) -> None:
    for stage in range(4):
        with tempfile.TemporaryDirectory() as root:
            compare(Path(root), ranks, stage, 2, "model.freeze_text=true")
