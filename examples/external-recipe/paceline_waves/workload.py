"""The recipe as the engine sees it: model, loss, metrics of one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.workload import Objective, Setting, Workload
from paceline_waves.config import WavesConfig
from paceline_waves.waves import SPLITS, WaveSet, generate_waves


class WavesWorkload(Workload):
    """What is not written here (units, FLOPs, observations, …) has a default in `Workload`."""

    objective = Objective("mse", "min")
    metric_names = ("mse", "mae")
    splits = SPLITS  # the first one decides which model is best, the others are evaluated at the end
    has_static_shapes = True  # every batch of as many waves has the same shapes: on a GPU a step can be one graph

    def __init__(self, config: WavesConfig) -> None:
        data = config.data
        self._config = config
        self._train = WaveSet(generate_waves(data.num_train, data.length, data.noise, [data.seed, 0]), data.jitter)
        self._evaluation = {
            split: WaveSet(generate_waves(data.num_evaluate, data.length, data.noise, [data.seed, number]))
            for number, split in enumerate(SPLITS, 1)
        }

    def build_model(self, setting: Setting) -> nn.Module:
        length, width, dropout = self._config.data.length, self._config.model.width, self._config.model.dropout
        return nn.Sequential(
            nn.Linear(length, width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 1),
        )

    def train_set(self) -> WaveSet:
        return self._train

    def evaluation_set(self, split: str) -> WaveSet:
        return self._evaluation[split]

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """A sum and its weight, not a mean: the engine divides by the weight of the whole batch, over all ranks."""
        errors = model(batch["points"]).squeeze(-1).float() - batch["next"]
        return errors.square().sum(), torch.ones_like(errors).sum()

    def predict(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"error": model(batch["points"]).squeeze(-1).float() - batch["next"]}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, float]:
        return measure(outputs["error"])

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]]:
        waves = self._evaluation[split].waves[:num_samples]
        return "last point", measure(waves[:, -2] - waves[:, -1])

    def details(self) -> Mapping[str, Any]:
        return {"source": "generated", "length": self._config.data.length}


def measure(errors: np.ndarray[Any, Any] | Sequence[float]) -> dict[str, float]:
    errors = np.asarray(errors, np.float64)
    return {"mse": float(np.mean(errors**2)), "mae": float(np.mean(np.abs(errors)))}
