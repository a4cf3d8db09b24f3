"""Loads batches of a configuration without training on them, with several numbers of loader processes; prints one JSON line.

python -m paceline.bench.loading '{"target": "sasrec", "overrides": ["data.placement=host"], "workers": [0, 2], "seconds": 2, "root": "/tmp/x"}'
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from paceline.config.arithmetic import plan_length
from paceline.engine.context import Context
from paceline.engine.dealing import find_measure
from paceline.engine.loader import Loader
from paceline.engine.ranks import join_ranks
from paceline.engine.stop import StopWatch
from paceline.recipes.job import load_job
from paceline.telemetry.events import QuietLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.run_file import RunFile
from paceline.workload import Batch, Draw, SampleSet

_STEPS = 10**6


class OnHost:
    """The same samples, fetched on the host even where a run would keep them on the device."""

    def __init__(self, samples: SampleSet) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def fetch(self, ids: Sequence[int], draw: Draw) -> Batch:
        return self._samples.fetch(ids, draw)

    def on_device(self, device: torch.device) -> None:
        return None


def run(target: str, overrides: Sequence[str], workers: Sequence[int], seconds: float, root: str) -> dict[str, Any]:
    """A row per way to load."""
    given = [text for text in overrides if text.partition("=")[0] != "data.num_workers"]
    directory, rows = Path(root), list[dict[str, Any]]()
    directory.mkdir(parents=True, exist_ok=True)
    for num_workers in workers:
        job = load_job(target, [*given, f"data.num_workers={num_workers}"])
        workload = job.recipe.build(job.config)
        ranks = join_ranks(job.config.parallel)
        layout = RunLayout(directory)
        nobody = RunFile("bench", job.recipe.name, "", "", time.time(), {})
        watch, pulse = StopWatch(layout, 1, None), PulseWriter(directory, 0, 1)
        context = Context(job.config, (), (), ranks, layout, nobody, 1, QuietLog(), watch, pulse)
        samples, length = workload.train_set(), plan_length(job.config.train, len(workload.train_set()))
        measure = find_measure(workload, samples, job.config.run.seed)
        if not rows and samples.on_device(ranks.device) is not None:
            loader = Loader(context, samples, length, measure)
            rows.append({"workers": "on the device"} | _load(loader, seconds, ranks.device))
        loader = Loader(context, OnHost(samples), length, measure)
        rows.append({"workers": num_workers} | _load(loader, seconds, torch.device("cpu")))
    return {"global_batch": job.config.train.global_batch, "rows": rows}


def _load(loader: Loader, seconds: float, device: torch.device) -> dict[str, Any]:
    asked, read_before = time.perf_counter(), _read_bytes()
    batches = loader.load(1, _STEPS)
    next(batches)
    began = time.perf_counter()
    num_samples = num_bytes = num_batches = 0
    while time.perf_counter() - began < seconds:
        item = next(batches)
        num_samples, num_bytes, num_batches = (
            num_samples + len(item.ids),
            num_bytes + _size(item.batch),
            num_batches + 1,
        )
    if device.type == "cuda":
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    return {
        "first_batch_ms": (began - asked) * 1e3,
        "batches": num_batches,
        "samples_per_s": num_samples / took,
        "delivered_mb_per_s": num_bytes / took / 1e6,
        "disk_mb_per_s": (_read_bytes() - read_before) / (time.perf_counter() - asked) / 1e6,
    }


def _size(value: Any) -> int:
    """Bytes of the tensors of a batch."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_size(item) for item in value)
    return 0


def _read_bytes() -> int:
    """What this process and its loader processes have read from a disk (and not from memory that holds its files)."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children()]:
        with contextlib.suppress(psutil.Error):
            total += process.io_counters().read_bytes
    return total


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # a loader process that still fetches is not waited for
