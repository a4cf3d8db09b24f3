"""A small workload whose loss is one of the whole step: two towers on random vectors, and a temperature that is learned and clamped."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from paceline.workload import Draw, Embedded, Objective, SampleSet, Setting, Workload

LOWEST, HIGHEST = 0.0, 1.6
"""of the logarithm of the inverse temperature"""


class Pairs(SampleSet):
    """Pairs of vectors, the second made from the first."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.left = torch.randn(count, 6, generator=generator)
        self.right = self.left[:, [5, 0, 3, 1, 2, 4]] + 0.1 * torch.randn(count, 6, generator=generator)

    def __len__(self) -> int:
        return len(self.left)

    def fetch(self, ids, draw: Draw) -> dict[str, Any]:
        index = torch.as_tensor(list(ids))
        return {"left": self.left[index], "right": self.right[index], "ids": index}


class Layer(torch.nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.linear(x)))


class Towers(torch.nn.Module):
    """Blocks in lists, as a sharded strategy looks for them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.left = torch.nn.ModuleList(Layer(dropout) for _ in range(2))
        self.right = torch.nn.ModuleList(Layer(dropout) for _ in range(2))
        self.log_scale = torch.nn.Parameter(torch.tensor([1.5]))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.left:
            left = layer(left)
        for layer in self.right:
            right = layer(right)
        rows = torch.stack([functional.normalize(left, dim=1), functional.normalize(right, dim=1)], dim=1)
        return rows, self.log_scale.clamp(LOWEST, HIGHEST).exp()


class Alignment(Workload):
    """Pairs are told from all others of the step, both ways."""

    objective = Objective("distance", "min")
    metric_names = ("distance",)
    splits = ("validation",)

    def __init__(self, count: int = 29, dropout: float = 0.0) -> None:
        self._train, self._validation = Pairs(count), Pairs(5)
        self._dropout = dropout

    def build_model(self, setting: Setting) -> torch.nn.Module:
        return Towers(self._dropout)

    def train_set(self) -> Pairs:
        return self._train

    def evaluation_set(self, split: str) -> Pairs:
        return self._validation

    def embed(self, model, batch) -> Embedded:
        return Embedded(*model(batch["left"], batch["right"]))

    def contrast(self, rows, shared):
        logits = rows[:, 0] @ rows[:, 1].T * shared
        answers = torch.arange(len(rows), device=rows.device)
        losses = functional.cross_entropy(logits, answers, reduction="sum")
        losses = losses + functional.cross_entropy(logits.T, answers, reduction="sum")
        return losses / 2, torch.tensor(float(len(rows)), device=rows.device)

    def predict(self, model, batch):
        rows, _ = model(batch["left"], batch["right"])
        return {"distance": (rows[:, 0] - rows[:, 1]).norm(dim=1)}

    def metrics(self, split, outputs: dict[str, np.ndarray]):
        return {"distance": float(outputs["distance"].mean())}
