"""What the SDK costs a loop: microseconds per call, and a real step with and without it, in turns.

python benchmarks/sdk_cost.py                  # without torch: the calls alone
python benchmarks/sdk_cost.py --device cpu     # and steps of a small model (cuda: on a GPU)
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paceline import start_run
from paceline.telemetry.sdk import TrackedRun


def microseconds(call: Callable[[], object], count: int = 3000, repeats: int = 9) -> tuple[float, float]:
    """(median, least) per call over the repeats."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - began) / count * 1e6)
        time.sleep(0.2)  # the thread beside catches up: a loop of nothing but calls is nobody's
    return statistics.median(found), min(found)


def measure_calls(folder: Path) -> None:
    began = time.perf_counter()
    run = start_run(folder / "calls", {"lr": 0.1}, log_every=10)
    print(f"start_run                 {(time.perf_counter() - began) * 1e3:8.1f} ms")

    def phase() -> None:
        with run.phase("forward"):
            pass

    calls = {
        "step(loss, samples)": lambda: run.step(loss=1.0, samples=64),
        "phase": phase,
        "should_stop": lambda: run.should_stop,
    }
    for name, call in calls.items():
        median, least = microseconds(call)
        print(f"{name:<24}  {median:8.2f} µs (least {least:.2f})")
    began = time.perf_counter()
    run.finish()
    print(f"finish                    {(time.perf_counter() - began) * 1e3:8.1f} ms")


def measure_steps(folder: Path, device: str, blocks: int, steps: int) -> None:
    """Blocks of steps, with and without the SDK in random order: the machine's moods meet both."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256, device=device)
    run = start_run(folder / "steps", log_every=10)

    def block(run: TrackedRun | None) -> float:
        def phase(name: str) -> contextlib.AbstractContextManager[None]:
            return run.phase(name) if run is not None else contextlib.nullcontext()

        began = time.perf_counter()
        for index in range(steps):
            with phase("forward"):
                loss = (model(batch) - batch).square().mean()
            with phase("backward"):
                optimizer.zero_grad()
                loss.backward()
            with phase("optimizer"):
                optimizer.step()
            if run is not None:
                run.step(loss=loss, samples=64)
            elif index % 10 == 9:
                loss.item()  # whoever logs reads the loss as often
        return (time.perf_counter() - began) / steps * 1e3

    block(None), block(run)
    ratios, plain = [], []
    for _ in range(blocks):
        order = [None, run]
        random.shuffle(order)
        times = {each is not None: block(each) for each in order}
        ratios.append(times[True] / times[False] - 1)
        plain.append(times[False])
    run.finish()
    ratios.sort()
    low, high = ratios[int(0.05 * blocks)], ratios[int(0.95 * blocks)]
    mean, error = statistics.fmean(ratios), statistics.stdev(ratios) / blocks**0.5
    print(
        f"a step of {statistics.median(plain):.2f} ms on {device}: {mean:+.2%} ± {2 * error:.2%} with the SDK, ", end=""
    )
    print(
        f"{blocks} pairs of {steps} steps, median {statistics.median(ratios):+.2%}, 5 to 95 %: {low:+.1%} to {high:+.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda: measure steps of a model, too")
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    logging.basicConfig()
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        measure_calls(Path(folder))
        if arguments.device:
            measure_steps(Path(folder), arguments.device, arguments.blocks, arguments.steps)


if __name__ == "__main__":
    main()
