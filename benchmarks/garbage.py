"""The longest pause of Python's garbage collection inside a training step, left to itself and kept off the steps.

OMP_NUM_THREADS=1 python benchmarks/garbage.py [steps]

One process on the CPU, a small sasrec model on generated data; the two in turn, three times each. `inside` counts collections that came in the
middle of a step, `between` those that came at a place where all ranks make theirs; times in ms.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from paceline.engine.step import TrainStep
from paceline.worker.__main__ import main

CASES = {"by itself": 0, "every 50 steps": 50}


class Pauses:
    """Collections by where they came."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"inside": [], "between": []}
        self.place = "before"
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif self.place in self.times:
            self.times[self.place].append((time.perf_counter() - self._began) * 1e3)


def measure(steps: int, gc_every: int, folder: Path) -> Pauses:
    """One run; what the start-up collects is not counted."""
    pauses, run = Pauses(), TrainStep.run

    def step(self: TrainStep, *arguments: object) -> object:
        pauses.place = "inside"
        result = run(self, *arguments)  # type: ignore[arg-type]
        pauses.place = "between"
        return result

    TrainStep.run = step  # type: ignore[method-assign, assignment]
    gc.callbacks.append(pauses)
    arguments = ["sasrec", f"train.max_steps={steps}", "train.epochs=null", f"train.gc_every={gc_every}"]
    small = ["model.width=16", "model.blocks=1", "data.max_length=16", "train.global_batch=32", "data.placement=host"]
    quiet = [*small, "telemetry.tensorboard=false", "checkpoint.enabled=false", "evaluate.every_epochs=null"]
    try:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
            assert main([*arguments, *quiet, "--out", str(folder)]) == 0
    finally:
        gc.callbacks.remove(pauses)
        TrainStep.run = run  # type: ignore[method-assign]
    return pauses


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    screen = os.fdopen(os.dup(1), "w", buffering=1)
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(3):
            for name, every in CASES.items():
                found = measure(steps, every, Path(folder) / f"{repeat}-{every}").times
                words = [
                    f"{place}: {len(times)}, longest {max(times, default=0):.2f}, in all {sum(times):.2f}"
                    for place, times in found.items()
                ]
                print(f"{name:15} {'   '.join(words)}", file=screen)
    screen.flush()
    os._exit(0)
