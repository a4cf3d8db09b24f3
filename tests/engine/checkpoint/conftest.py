"""Models, runs and savers for tests of checkpoints inside one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.config.sections import Optimizer
from paceline.engine.build import build_trainer
from paceline.engine.checkpoint import shard
from paceline.engine.checkpoint.saver import Saver
from paceline.engine.checkpoint.start import choose_start
from paceline.engine.context import Context
from paceline.engine.optimizer import build_optimizer
from paceline.engine.precision import Precision
from paceline.engine.state import TrainState
from paceline.engine.strategies.base import Strategy, find_trainable
from paceline.engine.trainer import Trainer
from paceline.telemetry.events import QuietLog
from paceline.telemetry.layout import RunLayout
from tests.engine.conftest import Regression


class Mixed(torch.nn.Module):
    """What checkpoints meet: tied weights, BatchNorm's buffers (a count among them), a buffer that is not kept, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.output = torch.nn.Linear(6, 11, bias=False)
        self.output.weight = self.embedding.weight
        self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("scratch", torch.randn(2), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(self.embedding(ids)))


@dataclass
class Parts:
    """A model in training."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision

    @property
    def strategy(self) -> Strategy:
        return Strategy(self.model)

    def train(self, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            ids = torch.randint(11, (16,), generator=generator)
            loss = torch.nn.functional.cross_entropy(self.model(ids), (ids * 7 + 3) % 11)
            self.precision.scale(loss).backward()
            factor = self.precision.unscale(torch.ones(()))
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= factor
            self.precision.apply(self.optimizer, torch.zeros(()))
            self.optimizer.zero_grad()


def build_parts(seed: int = 0, precision: Precision | None = None, **optimizer: Any) -> Parts:
    torch.manual_seed(seed)
    model = Mixed()
    section = Optimizer(**({"lr": 0.01} | optimizer))
    return Parts(
        model,
        build_optimizer(find_trainable(model), section, torch.device("cpu"), QuietLog()),
        precision or Precision(),
    )


@pytest.fixture
def save_on_two_ranks(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RunLayout]:
    """save_on_two_ranks(parts, 10, 20) -> the run directory with these checkpoints, each of two shards, written by the real savers."""
    monkeypatch.setattr(shard, "_LEAST_BYTES", 1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power cut comes here

    def save(parts: Parts, *steps: int) -> RunLayout:
        sections = {"checkpoint": {"asynchronous": False}}
        contexts = [make_context(sections, rank=rank, world_size=2) for rank in range(2)]
        choose_start(contexts[0])
        savers = [Saver(context, parts.strategy, parts.optimizer, parts.precision, None) for context in contexts]
        for step in steps:
            parts.train(range(step, step + 1))
            for saver in reversed(savers):  # rank 0 waits for the others
                saver.approve(step)
                saver.save(TrainState(step=step, samples=step * 16))
        for saver in savers:
            saver.finish(TrainState(), is_final=False)
        return contexts[0].layout

    return save


@pytest.fixture
def train(make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trainer]:
    """train(8, every_steps=4) -> a small run to that step, in the test's directory; the same call again goes on from there."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power cut comes here

    def run(max_steps: int, **checkpoint: Any) -> Trainer:
        trainer = build_trainer(make_small(make_context, max_steps, **checkpoint), Regression())
        try:
            trainer.run()
        finally:
            trainer.close()
        return trainer

    return run


def make_small(make_context: Callable[..., Context], max_steps: int, **checkpoint: Any) -> Context:
    sections = {
        "train": {"max_steps": max_steps, "global_batch": 8},
        "telemetry": {"tensorboard": False, "log_every": 1},
        "evaluate": {"every_epochs": None},
        "checkpoint": {"every_epochs": None} | checkpoint,
    }
    return make_context(sections)


def names_below(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
