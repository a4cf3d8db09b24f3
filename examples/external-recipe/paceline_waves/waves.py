"""Generated waves as samples: some points, and the one that follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline.workload import Draw, SampleSet

SPLITS = ("validation", "test")


def generate_waves(count: int, length: int, noise: float, seed: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Sums of two sines with noise: one row per wave, `length` points and the next one."""
    random = np.random.default_rng(seed)
    time = np.arange(length + 1)
    waves = np.zeros((count, length + 1))
    for _ in range(2):
        period = random.uniform(6, 30, (count, 1))
        phase = random.uniform(0, 2 * np.pi, (count, 1))
        waves += np.sin(2 * np.pi * time / period + phase)
    return (waves + random.normal(0, noise, waves.shape)).astype(np.float32)


class WaveSet(SampleSet):
    """Waves that can be fetched by their index."""

    def __init__(self, waves: np.ndarray[Any, np.dtype[np.float32]], jitter: float = 0.0) -> None:
        self.waves = waves
        self._jitter = jitter

    def __len__(self) -> int:
        return len(self.waves)

    def fetch(self, ids: Sequence[int], draw: Draw) -> dict[str, torch.Tensor]:
        chosen = self.waves[np.asarray(ids)].copy()
        if self._jitter:
            # Drawn per sample from what names it, never from a global generator: the same on any number of ranks, and after a resume.
            for row, sample in zip(chosen, ids, strict=True):
                random = np.random.default_rng([draw.seed, draw.epoch, int(sample)])
                row[:-1] += random.normal(0, self._jitter, len(row) - 1)
        return {"points": torch.from_numpy(chosen[:, :-1]), "next": torch.from_numpy(chosen[:, -1])}
