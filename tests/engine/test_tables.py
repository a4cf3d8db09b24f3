"""Tables: gradients of touched rows give the training that dense gradients and a row-by-row update give, however a step is cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.order import SampleOrder
from paceline.engine.ranks import Ranks
from paceline.engine.rows import RowTable, find_tables
from paceline.engine.seeding import seed_model
from paceline.errors import ConfigError, NonFiniteError, UsageError
from paceline.files import read_records
from paceline.telemetry.tables import read_table
from tests.engine.conftest import build_context
from tests.engine.lookups import HASH_ROWS, NUM_ITEMS, WIDTH, ListModel, ListRegression

GLOBAL_BATCH = 13
"""of 29 samples: the third step of an epoch has 3, fewer than there are ranks"""
STEPS = 6
RULE = {"name": "adamw", "lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.9), "no_decay": ["kinds"]}
CLIP = 0.8


def expect(rule=None) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses with dense gradients of the whole batch, and tables updated row by row in plain numbers."""
    rule = rule or RULE
    workload = ListRegression()
    seed_model(0)
    model = workload.build_model(None)
    for module in model.modules():
        if isinstance(module, RowTable):  # dense: another way than the engine's
            module.forward = lambda ids, table=module: look_up_densely(table, ids)
    tables = find_tables(model)
    dense = {name: p for name, p in model.named_parameters() if name not in tables}
    adam = torch.optim.AdamW(dense.values(), lr=rule["lr"], weight_decay=rule["weight_decay"], betas=rule["betas"])
    rows = {(name, row): [0, 0.0, 0.0] for name, weight in tables.items() for row in range(len(weight))}
    order, losses = SampleOrder(29, GLOBAL_BATCH, 3, 0), []
    for step in range(STEPS):
        batch = workload.train_set().fetch(order.batch(*divmod(step, 3)), None)
        loss_sum, weight = workload.loss(model, batch)
        model.zero_grad()
        (loss_sum / weight).backward()
        losses.append(float(loss_sum.detach() / weight))
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        adam.step()
        for name, table in tables.items():
            decay = 0.0 if "kinds" in name else rule["weight_decay"]
            for row in table.grad.abs().sum(1).nonzero().flatten().tolist():
                update_row(table.data[row], table.grad[row], rows[name, row], rule, decay)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


def look_up_densely(table: RowTable, ids: torch.Tensor) -> torch.Tensor:
    if table.hash_rows is None:
        return table.weight[ids]
    from paceline.engine.rows import _hash

    first, second = _hash(ids, table.hash_rows)
    return table.weight[first] + table.weight[second]


def update_row(row: torch.Tensor, gradient: torch.Tensor, state: list, rule: dict, decay: float) -> None:
    beta1, beta2 = rule["betas"]
    state[0] += 1
    state[1] = beta1 * state[1] + (1 - beta1) * gradient
    state[2] = beta2 * state[2] + (1 - beta2) * gradient**2
    average, square = state[1] / (1 - beta1 ** state[0]), state[2] / (1 - beta2 ** state[0])
    row.mul_(1 - rule["lr"] * decay).sub_(rule["lr"] * average / (square.sqrt() + 1e-8))


def train(root: Path, ranks: Ranks | None = None, workload=None, *, parallel=None, sections=None, **train):
    """(weights, losses, trainer) of a run."""
    own = vars(ranks) if ranks is not None else {}
    settings = {
        "train": {"max_steps": STEPS, "global_batch": GLOBAL_BATCH, "clip_norm": CLIP, "optimizer": RULE} | train,
        "parallel": parallel or {},
        "telemetry": {"tensorboard": False, "log_every": 1},
        "evaluate": {"every_epochs": None},
        "precision": {"mode": "fp32", "tf32": False},
    } | (sections or {})
    context = build_context(root, settings, **own)
    trainer = build_trainer(context, workload or ListRegression())
    try:
        trainer.run()
    finally:
        trainer.close()
    with trainer._strategy.whole() as model:
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    losses = [row["loss"] for row in read_table(context.layout.metrics)] if context.ranks.is_first else []
    return weights, losses, trainer


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], why: object = "") -> None:
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name} {why} {text}"
        )


@pytest.mark.parametrize(
    "options",
    [{"micro_batch": 13}, {"micro_batch": 5}, {"micro_batch": 1}, {"micro_batch": 5, "activation_checkpointing": True}],
    ids=str,
)
def test_one_rank(tmp_path, options):
    weights, losses = expect()
    found, reported, _ = train(tmp_path, **options)
    assert reported == pytest.approx(losses, rel=1e-5)
    assert_close(found, weights)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks(on_ranks, count):
    on_ranks(count, every_stage)


def every_stage(ranks: Ranks) -> None:
    weights, losses = expect()
    for stage in range(4):
        for accumulate in (1, 2):
            with tempfile.TemporaryDirectory() as root:
                found, reported, trainer = train(
                    Path(root), ranks, parallel={"zero_stage": stage, "check_every": 1}, accumulate=accumulate
                )
            if ranks.is_first:
                assert reported == pytest.approx(losses, rel=1e-5), (stage, accumulate)
            assert_close(found, weights, (stage, accumulate))
