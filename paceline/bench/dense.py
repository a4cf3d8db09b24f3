"""Trains a dense model of a chosen size through the real engine and prints when each step began, as one JSON line.

    python -m paceline.bench.dense '{"parameters": 10000000, "tokens": 2048, "steps": 40, "save_every": 10, "root": "/tmp/x"}'

Nothing but the model's size, the batch and the saves costs anything here: the input is made once, on the device.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
from paceline.engine.trainer import Trainer
from paceline.telemetry.events import EventLog, QuietLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory, remove_pulse_directory
from paceline.telemetry.run_file import Attempt, RunFile, load_run_file
from paceline.workload import Batch, Draw, Objective, Setting, Workload


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
    draws_numbers = True

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


@contextlib.contextmanager
def dense_trainer(
    config: RunConfig, parameters: int, tokens: int, root: Path
) -> Iterator[tuple[Trainer, DenseWorkload, Context]]:
    """A trainer of the dense model, on as many ranks as were started."""
    workload = DenseWorkload(parameters, tokens)
    with bench_trainer(config, workload, root) as (trainer, context):
        yield trainer, workload, context


@contextlib.contextmanager
def bench_trainer(config: RunConfig, workload: Workload, root: Path) -> Iterator[tuple[Trainer, Context]]:
    """A trainer of the real engine in a run directory of its own."""
    ranks, layout, attempt = join_ranks(config.parallel), RunLayout(root), 1
    if ranks.is_first:
        layout.root.mkdir(parents=True)
        identity: dict[str, Any] = {"fingerprint": "", "values": {}}
        begun = RunFile("bench" + os.urandom(4).hex(), config.recipe, "", paceline.__version__, time.time(), identity)
        pulses = create_pulse_directory(begun.id, attempt)
        begun.attempts.append(Attempt(attempt, ranks.world_size, os.getpid(), time.time(), str(pulses), sys.argv))
        begun.save(layout)
    ranks.gather_floats([0])  # the run is there for all of them
    run_file = load_run_file(root)
    assert run_file is not None
    pulses = Path(run_file.attempts[-1].pulses)
    try:
        events = EventLog(layout.events, "rank 0", attempt) if ranks.is_first else QuietLog()
        watch, pulse = StopWatch(layout, attempt, None), PulseWriter(pulses, ranks.rank, attempt)
        ranks.pulse = pulse
        context = Context(config, (), (), ranks, layout, run_file, attempt, events, watch, pulse)
        trainer = build_trainer(context, workload)
        yield trainer, context
        trainer.close()
        ranks.close()
    finally:
        remove_pulse_directory(pulses)


def run(parameters: int, tokens: int | None, steps: int, save_every: int | None, root: str) -> dict[str, Any]:
    """Trains, and says when each step began; `tokens` are those of a rank."""
    tokens = tokens or (8192 if torch.cuda.is_available() else 512)
    config = RunConfig.model_validate(
        {
            "recipe": "dense",
            "train": {"global_batch": tokens, "max_steps": steps, "optimizer": {"lr": 1e-6}},
            "evaluate": {"every_epochs": None},
            "checkpoint": {
                "enabled": save_every is not None,
                "every_steps": save_every,
                "every_epochs": None,
                "keep": 1,
            },
            "telemetry": {"tensorboard": False, "log_every": max(steps, 1)},
        }
    )
    with dense_trainer(config, parameters, tokens, Path(root)) as (trainer, workload, context):
        trainer.run()
    is_gpu = context.ranks.device.type == "cuda"
    name = torch.cuda.get_device_name() if is_gpu else f"CPU, {torch.get_num_threads()} threads"
    return {"began": workload.began, "device": name, "tokens": tokens, "parameters": workload.num_parameters}


if __name__ == "__main__":
    told = run(**json.loads(sys.argv[1]))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(told), flush=True)
    os._exit(0)  # as a rank of ours leaves: without destroying its process group
