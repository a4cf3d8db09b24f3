"""Trains a dense model of a chosen size through the real engine and prints when each step began, as one JSON line.

    python -m paceline.bench.dense '{"parameters": 10000000, "tokens": 2048, "steps": 40, "save_every": 10, "root": "/tmp/x"}'

Nothing but the model's size, the batch and the saves costs anything here: the input is made once, on the device.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paceline
from paceline.config.sections import RunConfig
from paceline.engine.build import build_trainer
from paceline.engine.context import Context
from paceline.engine.ranks import join_ranks
from paceline.engine.stop import StopWatch
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory, remove_pulse_directory
from paceline.telemetry.run_file import Attempt, RunFile
from paceline.workload import Batch, Draw, Objective, Setting


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(x)))
        return x + y


class Stack(torch.nn.Module):
    """Blocks in a list, as a recipe has them: what shards a model by its blocks finds them there."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Count:
    """A sample set of nothing but a number."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def fetch(self, ids: Sequence[int], draw: Draw) -> Batch:
        return {"tokens": len(ids)}

    def on_device(self, device: torch.device) -> None:
        return None


class DenseWorkload:
    """Residual blocks on random vectors; remembers when each step asked for its loss."""

    objective = Objective("loss", "min")
    metric_names: Sequence[str] = ("loss",)
    unit = "tokens"
    splits: Sequence[str] = ("none",)
    has_static_shapes = False

    def __init__(self, parameters: int, tokens: int) -> None:
        self._width = 512 if parameters < 10**8 else 2048
        self._blocks = max(1, round(parameters / (8 * self._width**2)))
        self._tokens = tokens
        self._input: torch.Tensor | None = None
        self.num_parameters = self._blocks * 8 * self._width**2
        self.began: list[float] = []

    def build_model(self, setting: Setting) -> torch.nn.Module:
        self._input = torch.randn(self._tokens, self._width, device=setting.device)
        with torch.device(setting.device):
            return Stack(self._width, self._blocks)

    def train_set(self) -> Count:
        return Count(self._tokens)

    def evaluation_set(self, split: str) -> Count:
        return Count(0)

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        self.began.append(time.perf_counter())
        assert self._input is not None
        output = model(self._input).float()
        return output.square().mean() * batch["tokens"], torch.tensor(float(batch["tokens"]), device=output.device)

    def units(self, ids: Sequence[int]) -> int:
        return len(ids)

    def observe(self, model: torch.nn.Module) -> Mapping[str, float]:
        return {}

    def predict(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        return {"loss": math.nan}

    def baseline(self, split: str, num_samples: int) -> None:
        return None

    def step_flops(self, num_units: int) -> float | None:
        return None

    def details(self) -> Mapping[str, Any]:
        return {}


def run(parameters: int, tokens: int | None, steps: int, save_every: int, root: str) -> dict[str, Any]:
    """Trains, and says when each step began."""
    tokens = tokens or (8192 if torch.cuda.is_available() else 512)
    config = RunConfig.model_validate(
        {
            "recipe": "dense",
            "train": {"global_batch": tokens, "max_steps": steps, "optimizer": {"lr": 1e-6}},
            "evaluate": {"every_epochs": None},
            "checkpoint": {"every_steps": save_every, "every_epochs": None, "keep": 1},
            "telemetry": {"tensorboard": False, "log_every": max(steps, 1)},
        }
    )
    layout, attempt = RunLayout(Path(root)), 1
    layout.root.mkdir(parents=True)
    identity: dict[str, Any] = {"fingerprint": "", "values": {}}
    run_file = RunFile("bench" + os.urandom(4).hex(), "dense", "", paceline.__version__, time.time(), identity)
    pulses = create_pulse_directory(run_file.id, attempt)
    run_file.attempts.append(Attempt(attempt, 1, os.getpid(), time.time(), str(pulses), sys.argv))
    run_file.save(layout)
    try:
        ranks = join_ranks(config.parallel)
        events = EventLog(layout.events, "rank 0", attempt)
        watch, pulse = StopWatch(layout, attempt, None), PulseWriter(pulses, 0, attempt)
        workload = DenseWorkload(parameters, tokens)
        trainer = build_trainer(
            Context(config, (), (), ranks, layout, run_file, attempt, events, watch, pulse), workload
        )
        trainer.run()
        trainer.close()
    finally:
        remove_pulse_directory(pulses)
    name = torch.cuda.get_device_name() if ranks.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {"began": workload.began, "device": name, "tokens": tokens, "parameters": workload.num_parameters}


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))))
