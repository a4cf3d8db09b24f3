"""Activation checkpointing: the same losses bit for bit with dropout, less kept for backward, and no quiet harm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.engine import compilation
from paceline.engine.blocks import find_blocks
from paceline.engine.build import build_trainer
from paceline.engine.recomputation import recompute_blocks
from paceline.errors import ConfigError
from paceline.files import read_records
from paceline.telemetry.events import QuietLog
from paceline.telemetry.tables import read_table
from tests.engine.conftest import Regression


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.calls = 0
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.Dropout(0.3), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():  # which would guard on the count, and compile anew for every other
            self.calls += 1
        return x + self.layers(x)


class Stack(nn.Module):
    def __init__(self, num_blocks: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)


class Stacked(Regression):
    def build_model(self, setting) -> Stack:
        return Stack()


def train(make_context, name, workload, **options):
    sections = {
        "train": {"max_steps": 5, "global_batch": 13, "micro_batch": 5} | options,
        "telemetry": {"tensorboard": False, "log_every": 1},
        "evaluate": {"every_epochs": None},
    }
    context = make_context(sections)
    rows = len(read_table(context.layout.metrics)) if context.layout.metrics.exists() else 0
    trainer = build_trainer(context, workload)
    trainer.run()
    trainer.close()
    losses = [(row["loss"], row["grad_norm"]) for row in read_table(context.layout.metrics)[rows:]]
    choices = [e for e in read_records(context.layout.events) if e.get("about") == "train.activation_checkpointing"]
    return losses, choices, trainer._strategy.model


def test_losses_are_equal_bit_for_bit_with_dropout(make_context):
    plain, _, kept = train(make_context, "plain", Stacked())
    recomputed, (choice,), model = train(make_context, "again", Stacked(), activation_checkpointing=True)
    assert recomputed == plain
    assert list(model.state_dict()) == list(kept.state_dict()), "names stay"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), kept.parameters(), strict=True))
    # In evaluation, which keeps nothing, once; in training twice.
    evaluations = 1
    assert model.blocks[0].calls == 2 * kept.blocks[0].calls - evaluations
    assert (choice["effective"], choice["reason"]) == (True, "3 blocks (blocks)")


def saved_bytes(model: nn.Module) -> int:
    found = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal found
        found += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(64, 4)).sum()
    return found


def test_what_is_kept_for_backward_grows_by_a_blocks_input_only():
    def per_block(*, recomputed: bool) -> float:
        sizes = []
        for num_blocks in (2, 6):
            model = Stack(num_blocks)
            if recomputed:
                recompute_blocks(model, QuietLog())
            sizes.append(saved_bytes(model))
        return (sizes[1] - sizes[0]) / 4

    activations = 64 * 16 * 4
    assert per_block(recomputed=False) > 10 * activations
    assert per_block(recomputed=True) <= activations


def test_blocks_are_the_outermost_elements_of_lists():
    model = nn.ModuleDict(
        {
            "tower": nn.ModuleList([nn.ModuleList([nn.Linear(1, 1)]), nn.ModuleDict({"a": nn.Linear(1, 1)})]),
            "plain": nn.Sequential(nn.Linear(1, 1)),
            "nested": nn.ModuleList([Stack(2)]),
        }
    )
    assert [name for name, _ in find_blocks(model)] == ["tower.0.0", "nested.0"]


def test_a_model_without_blocks_is_told(make_context):
    _, (choice,), _ = train(make_context, "none", Regression(), activation_checkpointing=True)
    assert (choice["requested"], choice["effective"]) == (True, False)
    assert "no blocks" in choice["reason"]


def test_statistics_are_not_counted_twice():
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))])})
    with pytest.raises(ConfigError, match=r"twice in the running statistics of BatchNorm1d in blocks\.0"):
        recompute_blocks(model, QuietLog())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_blocks_can_be_compiled_and_recomputed(make_context, monkeypatch):
    """Traced by what torch.compile uses, with the dropout of the first time in the second."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    plain, _, _ = train(make_context, "plain", Stacked(), compile={"enabled": True})
    torch._dynamo.reset()
    both, _, _ = train(make_context, "both", Stacked(), compile={"enabled": True}, activation_checkpointing=True)
    assert both == plain
    told = list(read_records(make_context().layout.events))
    kinds = [event["kind"] for event in told]
    assert "compile" in kinds
    assert "warning" not in kinds, [event["why"] for event in told if event["kind"] == "warning"]
