"""The gradients of a model's tables (rows.py): how they travel, what they bring to the norm, and how their rows are updated.

    tables = Tables(strategy, context, learning_rate)
    gradients = tables.gather()          # after the last backward of a step: the same on every rank
    tables.norm(gradients); tables.update(gradients, step, factor, skip)

Each rank adds up its own rows, number by number, and sends each once: the ranks' numbers and rows come together in two collectives for each
table, at the size of the rank that has most, and every rank adds them up in the order of the ranks. Nothing as large as a table travels,
nor is it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.utils import get_total_norm

from paceline.engine.compression import COMPRESSED_TYPES
from paceline.engine.context import Context
from paceline.engine.optimizer import LearningRate
from paceline.engine.row_gather import RowGather
from paceline.engine.row_optimizer import RowOptimizer
from paceline.engine.row_sums import group_rows, read_sizes, sum_groups
from paceline.engine.strategies.base import Strategy, find_trainable
from paceline.errors import CheckpointError, UsageError

Rows = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""of each table, by the name of its parameter: (numbers of rows, each once; their gradients)"""


@dataclass
class Traffic:
    """Of all steps of this start."""

    steps: int = 0
    rows: int = 0
    """touched, of all ranks together, each once in a step"""
    own_bytes: int = 0
    """of what this rank had to send: numbers and rows, each once in a step"""
    bytes: int = 0
    """that this rank received of the others, padding included"""


class Tables:
    """All tables of a model, on one rank."""

    def __init__(self, strategy: Strategy, context: Context, learning_rate: LearningRate) -> None:
        self.parameters = strategy.tables
        self._optimizer = RowOptimizer(self.parameters, context.config.train.optimizer)
        self._learning_rate = learning_rate
        self._ranks = context.ranks
        self._divisor = strategy.divisor
        self._type = COMPRESSED_TYPES.get(context.config.parallel.compression, torch.float32)
        self._gather = RowGather(context.ranks)
        self._other_bytes = sum(p.numel() for p in find_trainable(strategy.model).values()) * self._type.itemsize
        self.traffic = Traffic()

    @property
    def dense_bytes(self) -> int:
        """What a rank would receive in every step of a ring's all-reduce of dense gradients, in the same type."""
        world_size = self._ranks.world_size
        size = sum(weight.numel() for weight in self.parameters.values()) * self._type.itemsize
        return 2 * size * (world_size - 1) // world_size

    def describe_traffic(self) -> dict[str, float]:
        """Means of a step: rows, bytes received, those of dense gradients, and the tables' share of all gradients of this rank."""
        traffic, steps = self.traffic, max(1, self.traffic.steps)
        own_bytes = traffic.own_bytes / steps
        return {
            "steps": traffic.steps,
            "rows": round(traffic.rows / steps, 1),
            "bytes": round(traffic.bytes / steps),
            "dense_bytes": self.dense_bytes,
            "share": round(own_bytes / max(1, own_bytes + self._other_bytes), 4),
        }

    def gather(self) -> Rows:
        """Takes what the backwards of a step have left on this rank, and brings it together with the others'."""
        gradients = _sum_rows({name: self._take(name, weight) for name, weight in self.parameters.items()})
        self.traffic.own_bytes += sum(len(ids) * self._row_bytes(rows) for ids, rows in gradients.values())
        if self._ranks.has_group:
            gradients = self._exchange(gradients)
        self.traffic.steps += 1
        self.traffic.rows += sum(len(ids) for ids, _ in gradients.values())
        return gradients

    def norm(self, gradients: Rows) -> torch.Tensor:
        """Of all of them together."""
        return get_total_norm([rows for _, rows in gradients.values()])

    def update(self, gradients: Rows, step: int, factor: torch.Tensor, skip: torch.Tensor) -> None:
        """By factor · gradient, at the rate of this step; nothing where `skip` (a scalar on the device) is 1."""
        lr = self._learning_rate.at(step)
        for name, (ids, rows) in gradients.items():
            self._optimizer.update(name, ids, rows, lr, factor, skip)

    def moments(self) -> dict[str, torch.Tensor]:
        """What the rows' updates keep, by `entry.parameter`: the same on every rank."""
        return {f"{entry}.{name}": values for entry, name, values in self._optimizer.state()}

    def load(self, name: str, values: torch.Tensor, where: str) -> None:
        """Takes back one of what `moments` gave."""
        own = self.moments().get(name)
        if own is None or (own.shape, own.dtype) != (values.shape, values.dtype):
            kind = "nothing" if own is None else f"{tuple(own.shape)} {own.dtype}"
            what = (
                f"the state of a table's rows does not fit: {name} is {tuple(values.shape)} {values.dtype}, not {kind}"
            )
            raise CheckpointError(what, where, "use the configuration it was trained with")
        own.copy_(values)

    def _take(self, name: str, weight: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, weight.grad = weight.grad, None
        if gradient is None:  # not asked for on this rank
            empty = torch.empty(0, dtype=torch.long, device=weight.device)
            return empty, weight.detach().new_empty(0, weight.shape[1])
        if not gradient.is_sparse:
            raise UsageError(
                f"the gradient of the table {name} is a dense one: its weight is used by something else than the table's own call",
                name,
                "look rows up by calling the RowTable, also where all of them are needed, or use a torch.nn.Embedding",
            )
        return gradient._indices()[0], gradient._values()

    def _exchange(self, gradients: Rows) -> Rows:
        sizes = self._ranks.gather(torch.tensor([len(ids) for ids, _ in gradients.values()])).tolist()
        gathered = {}
        for (name, (ids, rows)), counts in zip(gradients.items(), zip(*sizes, strict=True), strict=True):
            if max(counts):
                # Divided before they are cast: fp16 ends at 65,504.
                rows = (rows / self._divisor).to(self._type)
                ids, rows = self._gather.run(ids.int(), counts), self._gather.run(rows, counts)
                self.traffic.bytes += (self._ranks.world_size - 1) * max(counts) * self._row_bytes(rows)
            gathered[name] = ids, rows
        return _sum_rows(gathered)

    def _row_bytes(self, rows: torch.Tensor) -> int:
        """Of a row as it travels, with its number."""
        return torch.int32.itemsize + rows.shape[1] * self._type.itemsize


def build_tables(strategy: Strategy, context: Context, learning_rate: LearningRate) -> Tables | None:
    """None where the model has none; recorded with what their gradients would be otherwise."""
    if not strategy.tables:
        return None
    tables = Tables(strategy, context, learning_rate)
    sizes = ", ".join(f"{name} {len(weight):,} × {weight.shape[1]:,}" for name, weight in strategy.tables.items())
    reason = sizes
    if context.ranks.world_size > 1:
        reason += f"; dense gradients would bring {tables.dense_bytes / 1e6:,.1f} MB to every rank in each step"
    context.events.choice("tables", "auto", "touched rows", reason)
    if context.config.train.optimizer.ema is not None:
        what = "the average of the weights goes over whole tables in each step, not over the rows that it touched"
        context.events.write("note", what=what, why="train.optimizer.ema averages every weight, also one that stays")
    return tables


def _sum_rows(gradients: Rows) -> Rows:
    """The same gradients with each number once."""
    grouped = {name: group_rows(ids.long()) for name, (ids, _) in gradients.items() if len(ids)}
    sizes = read_sizes(list(grouped.values()))
    sums = {
        name: sum_groups(groups, size, gradients[name][1])
        for (name, groups), size in zip(grouped.items(), sizes, strict=True)
    }
    return {name: sums.get(name, rows) for name, rows in gradients.items()}
