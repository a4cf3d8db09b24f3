"""A small workload with tables: the answer of a sample follows from the items it lists, whose number varies; number 0 is padding."""

from __future__ import annotations

from typing import Any

import torch

from paceline.engine.rows import RowTable
from paceline.workload import Draw, Objective, SampleSet, Setting, Workload

NUM_ITEMS, WIDTH, HASH_ROWS = 40, 6, 7


class Lists(SampleSet):
    """Lists of one to five items; low numbers are frequent, high ones come once or never."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.items = 1 + ((NUM_ITEMS - 1) * torch.rand(count, 5, generator=generator) ** 3).long()
        lengths = torch.randint(1, 6, (count, 1), generator=generator)
        self.items[torch.arange(5) >= lengths] = 0
        self.answers = torch.randn(count, generator=generator)

    def __len__(self) -> int:
        return len(self.answers)

    def fetch(self, ids, draw: Draw | None) -> dict[str, Any]:
        index = torch.as_tensor(list(ids))
        items = self.items[index]
        # As long as the longest: how much padding there is depends on how a step is cut.
        longest = int((items > 0).sum(1).max())
        return {"items": items[:, :longest], "y": self.answers[index], "weight": 1.0 + index % 3}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class ListModel(torch.nn.Module):
    """Two tables, one of them hashed and used twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.items = RowTable(NUM_ITEMS, WIDTH)
        self.kinds = RowTable(NUM_ITEMS, WIDTH, hash_rows=HASH_ROWS)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, 1)
        for table in (self.items, self.kinds):
            torch.nn.init.normal_(table.weight, std=0.5)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        is_there = (items > 0).unsqueeze(-1)
        x = ((self.items(items) + self.kinds(items)) * is_there).sum(1) + self.kinds(items[:, 0])
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


class ListRegression(Workload):
    """Weighted least squares."""

    objective = Objective("error", "min")
    metric_names = ("error",)
    splits = ("validation",)
    has_static_shapes = True
    draws_numbers = True

    def __init__(self, count: int = 29) -> None:
        self._train, self._validation = Lists(count), Lists(7)

    def build_model(self, setting: Setting | None) -> torch.nn.Module:
        return ListModel()

    def train_set(self) -> Lists:
        return self._train

    def evaluation_set(self, split: str) -> Lists:
        return self._validation

    def loss(self, model, batch):
        error = (model(batch["items"]) - batch["y"]) ** 2
        return (error * batch["weight"]).sum(), batch["weight"].sum()

    def predict(self, model, batch):
        return {"error": model(batch["items"]) - batch["y"]}

    def metrics(self, split, outputs):
        return {"error": float((outputs["error"] ** 2).mean())}
