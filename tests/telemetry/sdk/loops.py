"""A small loop that tells a run its steps, and what tests of it share."""

from __future__ import annotations

import time
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "data" / "run-v1"
CONFIG = {"lr": 0.1, "model": {"width": 8}, "epochs": 1}
PATIENCE_S = 30


class Tensor:
    """What the SDK asks of a tensor."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.reads = 0

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:
        self.reads += 1
        return self.value


def train(run, steps: int, **more) -> None:
    for _ in range(steps):
        with run.phase("data"):
            pass
        run.step(loss=1 / (run.last_step + 1), samples=4, **more)


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
