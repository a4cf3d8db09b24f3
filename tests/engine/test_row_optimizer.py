"""Rows that are touched in every step are updated as torch's optimizer updates a dense weight; others stay as they are."""

from __future__ import annotations

import pytest
import torch

from paceline.config.sections import Optimizer
from paceline.engine import row_optimizer
from paceline.engine.optimizer import _KINDS
from paceline.engine.row_optimizer import RowOptimizer

ONE, NO = torch.tensor(1.0), torch.tensor(0.0)


def build(name: str = "adamw", **settings) -> tuple[torch.nn.Parameter, RowOptimizer]:
    weight = torch.nn.Parameter(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)))
    return weight, RowOptimizer({"t": weight}, Optimizer(name=name, **settings))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adam", {"weight_decay": 0.1}),
        ("adamw", {"weight_decay": 0.1}),
        ("adamw", {"weight_decay": 0.1, "no_decay": ["t"]}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
        ("sgd", {"momentum": 0.0}),
    ],
    ids=str,
)
def test_the_rule_is_that_of_torch(name, settings, monkeypatch):
    monkeypatch.setattr(row_optimizer, "_AT_ONCE", {"cpu": 8})  # two rows at a time
    weight, optimizer = build(name, **settings)
    dense = torch.nn.Parameter(weight.detach().clone())
    options = {"momentum": settings["momentum"]} if name == "sgd" else {}
    decay = 0.0 if settings.get("no_decay") else settings.get("weight_decay", 0.0)
    reference = _KINDS[name]([dense], lr=0.01, weight_decay=decay, **options)
    for step in range(5):
        gradient = torch.randn(9, 4, generator=torch.Generator().manual_seed(step))
        dense.grad = gradient * 0.5
        reference.step()
        optimizer.update("t", torch.arange(9), gradient, 0.01, 0.5 * ONE, NO)
    torch.testing.assert_close(weight, dense, rtol=1e-6, atol=1e-7)


def test_a_row_that_comes_late_begins_as_the_others_did():
    weight, optimizer = build(weight_decay=0.0, eps=1e-12)
    before = weight.detach().clone()
    for _ in range(50):
        optimizer.update("t", torch.tensor([1]), torch.ones(1, 4), 0.01, ONE, NO)
    optimizer.update("t", torch.tensor([1, 5]), torch.ones(2, 4), 0.01, ONE, NO)
    change = weight.detach() - before
    torch.testing.assert_close(change[5], torch.full((4,), -0.01), rtol=1e-5, atol=0)
    assert torch.equal(change[[0, 2, 3, 4, 6, 7, 8]], torch.zeros(7, 4))
    assert {entry: values for entry, _, values in optimizer.state()}["step"].tolist() == [0, 51, 0, 0, 0, 1, 0, 0, 0]


def test_nothing_changes_where_there_is_no_gradient_or_a_step_is_left_out():
    weight, optimizer = build(weight_decay=0.1)
    optimizer.update("t", torch.arange(9), torch.ones(9, 4), 0.01, ONE, NO)
    before = [values.clone() for values in (weight.detach(), *(v for *_, v in optimizer.state()))]
    bad = torch.full((2, 4), float("nan"))
    optimizer.update("t", torch.tensor([0, 3]), bad, 0.01, ONE, ONE)
    optimizer.update("t", torch.tensor([0, 3]), torch.zeros(2, 4), 0.01, ONE, NO)
    optimizer.update("t", torch.empty(0, dtype=torch.long), torch.empty(0, 4), 0.01, ONE, NO)
    after = [weight.detach(), *(v for *_, v in optimizer.state())]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
