"""A small workload and a context for tests of the engine inside one process; and several ranks inside one test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.sections import RunConfig
from paceline.engine.context import Context
from paceline.engine.ranks import Ranks
from paceline.engine.stop import StopWatch
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.run_file import Attempt, RunFile
from paceline.workload import Draw, Objective, Setting
from tests.integration.conftest import Zygote


class Numbers:
    """Samples of random numbers; sample i weighs 1 + i % 3."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.features = torch.randn(count, 4, generator=generator)
        self.answers = torch.randn(count, generator=generator)

    def __len__(self) -> int:
        return len(self.answers)

    def fetch(self, ids, draw: Draw) -> dict[str, Any]:
        index = torch.as_tensor(list(ids))
        return {"x": self.features[index], "y": self.answers[index], "weight": 1.0 + index % 3, "ids": index}

    def on_device(self, device: torch.device) -> Numbers | None:
        return None


class Regression:
    """Weighted least squares with a small network."""

    objective = Objective("error", "min")
    metric_names = ("error",)
    unit = "rows"
    splits = ("validation",)
    has_static_shapes = True
    draws_numbers = True

    def __init__(self, count: int = 40, num_validation: int = 7) -> None:
        self._train, self._validation = Numbers(count), Numbers(num_validation)

    def build_model(self, setting: Setting) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def train_set(self) -> Numbers:
        return self._train

    def evaluation_set(self, split: str) -> Numbers:
        return self._validation

    def loss(self, model, batch):
        error = (model(batch["x"]).squeeze(-1) - batch["y"]) ** 2
        return (error * batch["weight"]).sum(), batch["weight"].sum()

    def units(self, ids) -> int:
        return len(ids)

    def predict(self, model, batch):
        return {"error": model(batch["x"]).squeeze(-1) - batch["y"], "id": batch["ids"]}

    def metrics(self, split, outputs: dict[str, np.ndarray]):
        assert outputs["id"].tolist() == list(range(len(outputs["id"])))
        return {"error": float(np.mean(outputs["error"] ** 2))}

    def baseline(self, split: str, num_samples: int):
        return None

    def observe(self, model):
        return {}

    def step_flops(self, num_units: int) -> float | None:
        return None

    def details(self):
        return {}


def build_context(
    root: Path, sections: dict[str, Any] | None = None, given: set[str] | None = None, **ranks: Any
) -> Context:
    """A context of one rank; without checkpoints unless they are asked for, so that a second one of a test begins anew."""
    config = RunConfig(recipe="regression", **({"checkpoint": {"enabled": False}} | (sections or {})))
    layout = RunLayout(root)
    alone = {"rank": 0, "world_size": 1, "device": torch.device("cpu"), "backend": "none", "backend_reason": "test"}
    me = Ranks(**(alone | ranks))
    run = RunFile("0123456789ab", "regression", "", "0", 0.0, {"fingerprint": "f" * 64, "values": {"run.seed": 0}})
    run.attempts.append(Attempt(1, me.world_size, 1, 0.0, "", []))
    run.save(layout)
    events, watch = EventLog(layout.events, f"rank {me.rank}", 1), StopWatch(layout, 1, None)
    pulse = PulseWriter(root, me.rank, 1)
    return Context(config, given or set(), [], me, layout, run, 1, events, watch, pulse)


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., Context]:
    """make_context({"train": {"max_steps": 5}}, given={"precision.tf32"}) -> a context of one rank."""
    return functools.partial(build_context, tmp_path)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


@pytest.fixture
def on_ranks(zygote: Zygote, tmp_path: Path) -> Callable[..., None]:
    """on_ranks(3, function): calls a function of a test module with `Ranks`, on each of them."""

    def call(count: int, function: Callable[[Ranks], None]) -> None:
        zygote.call(count, f"{function.__module__}:{function.__name__}", tmp_path)

    return call
