"""A loss of the whole step: that of one process which sees the whole batch, however the step is cut over ranks and micro-steps."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.order import SampleOrder
from paceline.engine.ranks import Ranks
from paceline.engine.seeding import seed_model
from paceline.telemetry.tables import read_table
from tests.engine.conftest import build_context
from tests.engine.towers import Alignment

GLOBAL_BATCH = 13
"""of 29 samples: the third step of an epoch has 3, fewer than there are ranks"""
STEPS = 3
SECTIONS = {
    "train": {
        "max_steps": STEPS,
        "global_batch": GLOBAL_BATCH,
        "optimizer": {"name": "sgd", "lr": 0.3, "momentum": 0.9},
    },
    "telemetry": {"tensorboard": False, "log_every": 1, "ledger": True},
    "evaluate": {"every_epochs": None},
}


def expect() -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses by autograd of the whole batch, without the engine."""
    workload = Alignment()
    seed_model(0)
    model = workload.build_model(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    order = SampleOrder(29, GLOBAL_BATCH, STEPS, 0)
    losses = []
    for step in range(STEPS):
        embedded = workload.embed(model, workload.train_set().fetch(order.batch(0, step), None))
        loss_sum, weight = workload.contrast(embedded.rows, embedded.shared)
        optimizer.zero_grad()
        (loss_sum / weight).backward()
        optimizer.step()
        losses.append(float(loss_sum.detach() / weight))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


def train(root: Path, ranks: Ranks | None = None, workload=None, stage: int = 0, **train):
    """(weights, losses, trainer) of a run."""
    own = vars(ranks) if ranks is not None else {}
    sections = SECTIONS | {"train": SECTIONS["train"] | train, "parallel": {"zero_stage": stage}}
    context = build_context(root, sections, **own)
    trainer = build_trainer(context, workload or Alignment())
    trainer.run()
    trainer.close()
    with trainer._strategy.whole() as model:
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    losses = [row["loss"] for row in read_table(context.layout.metrics)] if context.ranks.is_first else []
    return weights, losses, trainer


@pytest.mark.parametrize("micro_batch", [13, 7, 5, 1])
def test_one_rank(tmp_path, micro_batch):
    weights, losses = expect()
    found, reported, _ = train(tmp_path, micro_batch=micro_batch)
    assert reported == pytest.approx(losses, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks(on_ranks, count):
    on_ranks(count, every_stage)


def every_stage(ranks: Ranks) -> None:
    weights, losses = expect()
    for stage in range(4):
        for accumulate in (1, 2, 3):
            with tempfile.TemporaryDirectory() as root:
                found, reported, _ = train(Path(root), ranks, stage=stage, accumulate=accumulate)
            if ranks.is_first:
                assert reported == pytest.approx(losses, rel=1e-5), (stage, accumulate)
            for name, value in weights.items():
                torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5, msg=f"{name} {stage} {accumulate}")
