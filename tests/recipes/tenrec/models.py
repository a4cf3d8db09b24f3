"""Small models with weights that matter, workloads on generated rows, and a plain loop that trains them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.order import SampleOrder
from paceline.recipes.job import load_job
from paceline.recipes.tenrec import opening
from paceline.recipes.tenrec.config import Model
from paceline.recipes.tenrec.embedding import Sizes
from paceline.recipes.tenrec.generate import Generated, generate
from paceline.workload import Contrasts, Draw, Setting, Workload

SIZES = Sizes(items=301, categories=7, genders=4, ages=9)
SMALL = ("data.users=300", "data.items=200", "data.rows=9000", "data.negatives=11", "evaluate.negatives=19")


def stir(model: torch.nn.Module) -> torch.nn.Module:
    """Weights as of a trained model: nothing is 0, nothing so small that an error would be lost."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def build_model(**fields: Any) -> Model:
    return Model(**{"width": 32, "layers": 3, "heads": 4} | fields)


def draw_batch(rows: int, candidates: int, seed: int = 0, sizes: Sizes = SIZES) -> dict[str, torch.Tensor]:
    """Histories of any length, also of none."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    history = draw(sizes.items, rows, 10, low=1)
    history[torch.arange(10) >= draw(11, rows, 1)] = 0
    return {
        "history": history,
        "history_categories": draw(sizes.categories, rows, 10),
        "genders": draw(sizes.genders, rows),
        "ages": draw(sizes.ages, rows),
        "candidates": draw(sizes.items, rows, candidates, low=1),
        "categories": draw(sizes.categories, rows, candidates),
    }


def build_workload(*overrides: str, name: str = "tenrec") -> Any:
    given = {word.partition("=")[0] for word in overrides}
    job = load_job(name, [*(word for word in SMALL if word.partition("=")[0] not in given), *overrides])
    return job.recipe.build(job.config)


def train(workload: Workload, steps: int, batch: int, lr: float = 0.003, seed: int = 0) -> torch.nn.Module:
    """By the loss as the engine takes it, on one process."""
    torch.manual_seed(seed)
    model = workload.build_model(Setting(torch.device("cpu"), "own"))
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    samples = workload.train_set()
    per_epoch = len(samples) // batch
    order = SampleOrder(len(samples), batch, per_epoch, seed)
    for step in range(steps):
        epoch, index = divmod(step, per_epoch)
        ids = order.batch(epoch, index).tolist()
        fetched = samples.fetch(ids, Draw(seed, epoch, tuple(ids)))
        loss, weight = compute_loss(workload, model, fetched)
        optimizer.zero_grad()
        (loss / weight).backward()
        for parameter in model.parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        optimizer.step()
        schedule.step()
    return model


def compute_loss(workload: Any, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(workload, Contrasts):
        embedded = workload.embed(model, batch)
        return workload.contrast(embedded.rows, embedded.shared)
    return workload.loss(model, batch)


def evaluate(workload: Workload, model: torch.nn.Module, split: str = "test", block: int = 512) -> dict[str, float]:
    model.eval()
    samples = workload.evaluation_set(split)
    parts = []
    with torch.no_grad():
        for first in range(0, len(samples), block):
            ids = range(first, min(first + block, len(samples)))
            parts.append(workload.predict(model, samples.fetch(ids, Draw(0, 0))))
    outputs = {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}
    return dict(workload.metrics(split, outputs))


def plant_random_labels(monkeypatch: pytest.MonkeyPatch, chance: float) -> None:
    """Generated rows, of which every action happens by chance alone."""

    def drawn(users: int, items: int, rows: int, seed: int) -> Generated:
        made = generate(users, items, rows, seed)
        happens = np.random.default_rng(seed).random((rows, 4)) < chance
        actions = (happens << np.arange(4)).sum(1).astype(np.uint8)
        return dataclasses.replace(made, table=dataclasses.replace(made.table, actions=actions))

    monkeypatch.setattr(opening, "generate", drawn)
