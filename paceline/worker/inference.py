"""Inference compiled against inference as written: the same outputs, and how long each takes. For `paceline export --compile-check`.

check_compiled(load_model("exported", device="cuda"))
-> {"equal": True, "max_difference": 3e-6, "eager_ms": 4.1, "compiled_ms": 2.6, "compile_s": 31.0, "speed_up": 0.58, …}

The two are measured in turn, block by block, so that what else the machine does falls on both alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from paceline.engine.compilation import choose_dynamic
from paceline.engine.loader import to_device
from paceline.engine.precision import build_precision
from paceline.engine.ranks import Ranks
from paceline.errors import PacelineError, UsageError
from paceline.telemetry.events import QuietLog
from paceline.trained import Trained
from paceline.workload import Batch, Draw, Infers

BACKEND = "inductor"
"""What compiles; torch's own name for it."""
MOST_SAMPLES = 2048
_ROUNDS, _MEASURE_S = 5, 20.0
"""over all blocks, but no new block after so many seconds: a busy machine has its noise in any case"""
_CLOSE = {"fp32": 1e-4}
_CLOSE_HALF = 2e-2
"""relative, of a number; with half precision every operation rounds by up to 0.4 %"""
_SHARE = {"fp32": 0.001}
_SHARE_HALF = 0.02
"""of whole numbers (ranks, labels) that may come out otherwise: rounding decides between two that are nearly equal"""

Outputs = Mapping[str, torch.Tensor]
Predict = Callable[[Batch], Outputs]


def check_compiled(trained: Trained) -> dict[str, Any]:
    """Scores samples of the last split both ways; PacelineError where the model cannot be compiled."""
    config, workload = trained.job.config, trained.workload
    device = next(trained.model.parameters()).device
    precision = build_precision(config.precision, Ranks(0, 1, device, "none", "one process"), QuietLog())
    trained.attention.install()
    batches, num_samples = _batches(trained, device)
    dynamic, why = _choose_dynamic(batches, device)

    infer = workload.infer if isinstance(workload, Infers) else workload.predict

    def predict(batch: Batch) -> Outputs:
        return infer(trained.model, batch)

    compiled: Predict = torch.compile(predict, backend=BACKEND, dynamic=dynamic)
    with torch.no_grad(), precision.autocast():
        began = time.perf_counter()
        try:
            fast = [_settled(compiled(batch)) for batch in batches]
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            what = f"the model cannot be compiled: {type(error).__name__}: {first}"
            raise PacelineError(what, trained.where, "use it as written; the export itself is whole") from error
        compile_s = time.perf_counter() - began
        plain = [_settled(predict(batch)) for batch in batches]
        times = _measure({"eager": predict, "compiled": compiled}, batches, device)
    difference, share = _difference(plain, fast)
    close, most = _CLOSE.get(precision.name, _CLOSE_HALF), _SHARE.get(precision.name, _SHARE_HALF)
    eager_ms, compiled_ms = (statistics.median(times[name]) for name in ("eager", "compiled"))
    return {
        "equal": difference <= close and share <= most,
        "max_difference": difference,
        "share_different": share,
        "tolerance": f"numbers to {close:g}, relative; whole numbers all but {most:.1%} (measured {share:.2%})",
        "compared": f"{num_samples:,} samples of {workload.splits[-1]}, {', '.join(plain[0])}",
        "eager_ms": eager_ms,
        "compiled_ms": compiled_ms,
        "speed_up": eager_ms / compiled_ms - 1,
        "compile_s": compile_s,
        "measured": f"median of {len(times['eager'])} blocks of {config.evaluate.block} samples, in turn, on {device.type} in {precision.name}",
        "dynamic": dynamic,
        "why": why,
    }


def _batches(trained: Trained, device: torch.device) -> tuple[list[Batch], int]:
    config, split = trained.job.config, trained.workload.splits[-1]
    samples = trained.workload.evaluation_set(split)
    block = config.evaluate.block
    num_samples = min(len(samples), MOST_SAMPLES)
    # Whole blocks, where there is one: a last, smaller one is no shape to serve with.
    num_samples = num_samples // block * block or num_samples
    if not num_samples:
        raise UsageError(f"the split {split} has no samples to compare on", trained.where, "give data that has some")
    placed = samples.on_device(device) or samples
    draw = Draw(config.run.seed, epoch=0)
    starts = range(0, num_samples, block)
    return [
        to_device(placed.fetch(range(start, min(start + block, num_samples)), draw), device) for start in starts
    ], num_samples


def _choose_dynamic(batches: list[Batch], device: torch.device) -> tuple[bool, str]:
    """As training does, where shapes change; blocks are there to be looked at, so one shape of all is known on any device."""
    shapes = [{name: value.shape for name, value in batch.items() if torch.is_tensor(value)} for batch in batches]
    is_static = all(shape == shapes[0] for shape in shapes)
    return (False, "all blocks have one shape") if is_static else choose_dynamic("auto", device.type, False)


def _settled(outputs: Outputs) -> dict[str, torch.Tensor]:
    """On the host: whoever reads the time afterwards has waited for the device."""
    return {name: value.detach().cpu() for name, value in outputs.items()}


def _measure(ways: Mapping[str, Predict], batches: list[Batch], device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of every block, each way in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    deadline = time.perf_counter() + _MEASURE_S
    for batch in batches * _ROUNDS:
        if times["eager"] and time.perf_counter() > deadline:
            break
        for name, predict in ways.items():
            _wait(device)
            began = time.perf_counter()
            predict(batch)
            _wait(device)
            times[name].append((time.perf_counter() - began) * 1e3)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _difference(plain: list[dict[str, torch.Tensor]], fast: list[dict[str, torch.Tensor]]) -> tuple[float, float]:
    """(largest relative difference of a number, largest share of whole numbers that differ), over all outputs."""
    largest = share = 0.0
    for name in plain[0]:
        a = torch.cat([outputs[name] for outputs in plain])
        b = torch.cat([outputs[name] for outputs in fast])
        if a.is_floating_point():
            scale = a.double().abs().amax().clamp(min=1e-12)
            gap = ((a.double() - b.double()).abs().amax() / scale).item()
            largest = max(largest, gap if gap == gap else float("inf"))
        else:
            share = max(share, (a != b).double().mean().item())
    return largest, share
