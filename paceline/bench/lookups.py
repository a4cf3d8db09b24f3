"""Trains a table on the ranks that a launcher started and prints what travelled and how long a step took, as one JSON line.

    torchrun --nproc-per-node 2 -m paceline.bench.lookups '{"rows": 3300000, "width": 512, "lookups": 35328, "steps": 8, …}'

A step looks so many rows up, over all ranks; low numbers come more often, as 1 / number: every step has other ones.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.bench.dense import bench_trainer
from paceline.config.sections import RunConfig
from paceline.engine.rows import RowTable
from paceline.telemetry.tables import read_table
from paceline.workload import Batch, Draw, Objective, SampleSet, Setting, Workload

_SAMPLES = 64
"""of a step"""
_WARM_STEPS = 2


class Lists(SampleSet):
    """Samples that look rows up."""

    def __init__(self, count: int, num_rows: int, lookups: int) -> None:
        self._count = count
        self._num_rows = num_rows
        self._lookups = lookups

    def __len__(self) -> int:
        return self._count

    def fetch(self, ids: Sequence[int], draw: Draw) -> Batch:
        drawn = [np.random.default_rng((draw.seed, draw.epoch, number)).random(self._lookups) for number in ids]
        numbers = np.exp(np.stack(drawn) * math.log(self._num_rows)).astype(np.int64) - 1
        return {"ids": torch.from_numpy(numbers)}


class Sums(torch.nn.Module):
    """What is looked up, added up and weighed."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        super().__init__()
        with torch.device("meta"):
            self.table = RowTable(num_rows, width)
        # Not filled: on a CPU memory that nobody has touched is not there, and several ranks have room for tables that they use a part of.
        self.table.to_empty(device=device)
        self.head = torch.nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.table(ids).mean(1))
        return scores.squeeze(-1)


class LookupWorkload(Workload):
    """Least squares on sums of rows."""

    objective = Objective("loss", "min")
    metric_names = ("loss",)
    unit = "lookups"
    splits = ("none",)

    def __init__(self, rows: int, width: int, lookups: int, steps: int) -> None:
        self._rows, self._width = rows, width
        self._train = Lists(_SAMPLES * steps, rows, lookups // _SAMPLES)

    def build_model(self, setting: Setting) -> torch.nn.Module:
        return Sums(self._rows, self._width, setting.device)

    def train_set(self) -> Lists:
        return self._train

    def evaluation_set(self, split: str) -> Lists:
        return Lists(0, 1, 1)

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        scores = model(batch["ids"])
        return (scores - 1).square().sum(), torch.tensor(float(len(scores)), device=scores.device)

    def predict(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        return {"loss": math.nan}


def run(
    rows: int, width: int, lookups: int, steps: int, optimizer: str, compression: str, root: str
) -> dict[str, Any] | None:
    """What travelled; on rank 0 only."""
    config = RunConfig.model_validate(
        {
            "recipe": "lookups",
            "train": {
                "global_batch": _SAMPLES,
                "max_steps": steps,
                "optimizer": {"name": optimizer, "lr": 1e-3, "momentum": 0.0},
            },
            "parallel": {"compression": compression, "check_every": 0},
            "precision": {"mode": "fp32"},
            "evaluate": {"every_epochs": None},
            "checkpoint": {"enabled": False},
            "telemetry": {"tensorboard": False, "log_every": 1},
        }
    )
    workload = LookupWorkload(rows, width, lookups, steps)
    with bench_trainer(config, workload, Path(root)) as (trainer, context):
        trainer.run()
        tables = trainer._tables
        assert tables is not None
    if not context.ranks.is_first:
        return None
    is_gpu = context.ranks.device.type == "cuda"
    times = read_table(context.layout.metrics)[_WARM_STEPS:]
    return {
        "device": torch.cuda.get_device_name() if is_gpu else f"CPU, {torch.get_num_threads()} threads",
        "backend": context.ranks.backend,
        "nproc": context.ranks.world_size,
        "rows": rows,
        "width": width,
        "lookups": lookups // _SAMPLES * _SAMPLES,
        "optimizer": optimizer,
        "compression": compression,
        "touched_rows": tables.describe_traffic()["rows"],
        "bytes": tables.describe_traffic()["bytes"],
        "dense_bytes": tables.dense_bytes,
        "step_ms": statistics.median(row["step_ms"] for row in times),
        "update_ms": statistics.median(row["optimizer_ms"] for row in times),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


if __name__ == "__main__":
    told = run(**json.loads(sys.argv[1]))
    if told is not None:
        print(json.dumps(told), flush=True)
    os._exit(0)  # as a rank of ours leaves: without destroying its process group
