"""On one NVIDIA GPU: replayed steps are the steps without graphs, dropout and accumulation included, and a resume is exact."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.files import read_records
from paceline.telemetry.checkpoints import check_files, find_checkpoint
from paceline.telemetry.tables import read_table
from tests.engine.conftest import Numbers, Regression, build_context
from tests.gpu.test_cuda import effective, losses
from tests.gpu.test_cuda import train as train_command
from tests.gpu.test_resume import curve, kill_a_rank
from tests.gpu.test_resume import train as train_for_long

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


class Noisy(torch.nn.Module):
    """Dropout, a norm, a buffer that every forward changes, a parameter that no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = torch.nn.Linear(4, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 1)
        self.idle = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls.add_(1)
        hidden = torch.nn.functional.gelu(self.norm(self.inner(x)))
        return self.outer(torch.nn.functional.dropout(hidden, 0.5, self.training)).float()


class NoisyRegression(Regression):
    def build_model(self, setting) -> Noisy:
        self.model = Noisy()
        return self.model


class OnDevice(Numbers):
    def on_device(self, device: torch.device) -> OnDevice:
        placed = OnDevice(len(self))
        placed.features, placed.answers = self.features.to(device), self.answers.to(device)
        return placed

    def fetch(self, ids, draw):
        index = torch.as_tensor(list(ids), device=self.features.device)
        return {"x": self.features[index], "y": self.answers[index], "weight": 1.0 + index % 3, "ids": index}


class Placed(NoisyRegression):
    def __init__(self) -> None:
        super().__init__()
        self._train, self._validation = OnDevice(40), OnDevice(7)


class Looking(NoisyRegression):
    """Looks at a value on the host, which a graph cannot."""

    def loss(self, model, batch):
        loss_sum, weight = super().loss(model, batch)
        assert loss_sum.item() > 0
        return loss_sum, weight


@dataclasses.dataclass
class Result:
    losses: list[float]
    weights: dict[str, torch.Tensor]
    events: list[dict]
    num_graphs: int | None
    memory_gib: float


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Result]:
    """train(True, micro_batch=5) -> a small run on the GPU, with graphs or without."""
    count = 0

    def run(graph: bool, workload: NoisyRegression | None = None, mode: str = "fp32", **train: Any) -> Result:
        nonlocal count
        count += 1
        root = tmp_path / str(count)
        root.mkdir()
        options = {"max_steps": 12, "global_batch": 13, "graph": graph, "optimizer": {"lr": 0.01, "weight_decay": 0.1}}
        sections = {
            "train": options | train,
            "precision": {"mode": mode, "tf32": False},
            "telemetry": {"tensorboard": False, "log_every": 1},
            "evaluate": {"every_steps": 5, "every_epochs": None},
            "checkpoint": {"enabled": False},
        }
        context = build_context(root, sections, device=torch.device("cuda", 0))
        workload = workload or NoisyRegression()
        trainer = build_trainer(context, workload)
        trainer.run()
        trainer.close()
        rows = read_table(context.layout.metrics)
        graphs = trainer._step._graphs
        return Result(
            [row["loss"] for row in rows],
            {name: value.cpu() for name, value in workload.model.state_dict().items()},
            list(read_records(context.layout.events)),
            None if graphs is None else len(graphs._graphs),
            rows[-1]["memory_gib"],
        )

    return run


def assert_close(one: list[float], other: list[float], tolerance: float) -> None:
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        assert math.isclose(ours, theirs, rel_tol=tolerance), (ours, theirs)


@pytest.mark.parametrize(
    ("options", "num_graphs"),
    [
        ({}, 2),  # 13 samples, and 1 in the last batch of the 40
        ({"micro_batch": 5, "clip_norm": 0.5}, 3),  # 4 and 5; then two dummies and 1
        ({"workload": Placed}, 2),
        ({"mode": "bf16"}, 2),  # casts of weights that outlived their step would show
    ],
)
def test_replayed_steps_are_the_steps_without_graphs(train, options, num_graphs):
    kind = options.pop("workload", NoisyRegression)
    replayed, eager = train(True, kind(), **options), train(False, kind(), **options)
    assert (replayed.num_graphs, eager.num_graphs) == (num_graphs, None)
    tolerance = 1e-6 if options.get("mode", "fp32") == "fp32" else 1e-3
    assert_close(replayed.losses, eager.losses, tolerance)
    for name, value in eager.weights.items():
        torch.testing.assert_close(replayed.weights[name], value, rtol=1e-3, atol=1e-5)
    assert torch.equal(replayed.weights["calls"], eager.weights["calls"]), "warming up leaves no trace"
    assert torch.equal(replayed.weights["idle"], torch.ones(3)), "no gradient, and so no decay"
    assert replayed.memory_gib > 0


def test_dropout_is_another_one_in_each_step_and_the_same_again(train):
    still = {"global_batch": 40, "optimizer": {"name": "sgd", "lr": 1e-12}}  # every step: the same samples and weights
    first, again = train(True, **still), train(True, **still)
    assert first.losses == again.losses
    assert len({round(loss, 4) for loss in first.losses}) > 6


def test_what_cannot_be_recorded_runs_without_graphs(train):
    fallen, eager = train(True, Looking()), train(False, Looking())
    assert_close(fallen.losses, eager.losses, 1e-6)
    warnings = [event["what"] for event in fallen.events if event["kind"] == "warning" and "CUDA" in event["what"]]
    assert warnings == ["training goes on without CUDA graphs"]
    assert [e["effective"] for e in fallen.events if e.get("about") == "train.graph"] == [True, False]
    assert fallen.num_graphs == 0
    assert train(True).num_graphs == 2, "a failure leaves nothing behind for the next run"


@pytest.mark.parametrize("overrides", [("precision.mode=fp32", "precision.tf32=false"), ("precision.mode=bf16",)])
def test_the_recipe_trains_alike_with_and_without_graphs(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    options = (*overrides, "run.deterministic=true", "model.dropout=0.2", "train.micro_batch=20")
    runs = [train_command(tmp_path / word, 1, f"train.graph={word}", *options) for word in ("true", "false")]
    assert [effective(run)["train.graph"] for run in runs] == [True, False]
    assert_close(*(losses(run) for run in runs), 1e-5 if "fp32" in overrides[0] else 1e-2)


@pytest.mark.parametrize("time", [False, True], ids=["sasrec", "tisasrec"])
@pytest.mark.parametrize("mhc", [False, True], ids=["plain", "mhc"])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, time: bool, mhc: bool) -> None:
    """All four variants of the recipe, in bf16, with samples on the device."""
    variant = (f"model.time={str(time).lower()}", f"model.mhc={str(mhc).lower()}")
    options = ("train.graph=true", "precision.mode=bf16", "data.placement=device", "data.num_workers=0", *variant)
    reference = train_for_long(tmp_path / "reference", 1, *options)
    root = tmp_path / "run"
    kill_a_rank(root, 130, 1, *options)
    run = train_for_long(root, 1, *options)
    assert effective(run)["train.graph"] is True
    assert [event["start_step"] for event in run.events_of("plan")][1] >= 20
    assert curve(run) == curve(reference)
    final = find_checkpoint(root, "final")
    check_files(final)
    assert final.manifest.files == find_checkpoint(tmp_path / "reference", "final").manifest.files
