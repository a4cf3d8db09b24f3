"""Time from the command to the end of the first step: `paceline train` against a bare torchrun script with a model of the same shape.

Both sides run in turn, in one session, on the same ranks and threads; what counts is the ratio of the medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import PacelineError
from paceline.recipes.job import load_job
from paceline.recipes.sasrec.config import SasrecConfig
from paceline.telemetry.reader import read_run

_TARGET = 1.15


@dataclass(frozen=True)
class Repeat:
    """One pair of starts, in seconds."""

    bare_s: float
    paceline_s: float


def measure(repeats: int, nproc: int) -> Iterator[Repeat]:
    """Pairs of starts, the first of them a warm-up of the disk cache that is not given back."""
    config = load_job("sasrec").config
    assert isinstance(config, SasrecConfig)
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        for index in range(repeats + 1):
            # The order alternates, so that a drift of the machine does not favour one side.
            bare_s = _bare(nproc, config) if index % 2 else None
            paceline_s = _paceline(nproc, Path(scratch) / str(index))
            repeat = Repeat(bare_s if bare_s is not None else _bare(nproc, config), paceline_s)
            if index:
                yield repeat


def summarize(repeats: list[Repeat]) -> dict[str, object]:
    bare = statistics.median(r.bare_s for r in repeats)
    ours = statistics.median(r.paceline_s for r in repeats)
    ratios = [r.paceline_s / r.bare_s for r in repeats]
    return {
        "repeats": len(repeats),
        "bare_s": round(bare, 3),
        "paceline_s": round(ours, 3),
        "ratio": round(ours / bare, 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
        "target": _TARGET,
    }


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def _bare(nproc: int, config: SasrecConfig) -> float:
    script = Path(__file__).with_name("bare.py")
    data, model, batch = config.data, config.model, -(-config.train.global_batch // nproc)
    shape = [str(n) for n in (data.items, model.width, model.blocks, model.heads, data.max_length, batch)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    began = time.time()
    done = subprocess.run(
        [*command, str(script), *shape], env=_environment(), capture_output=True, text=True, timeout=300
    )
    for line in done.stdout.splitlines():
        if line.startswith("first-step "):
            return float(line.split()[1]) - began
    raise PacelineError("the bare script did not reach its first step", done.stderr[-500:])


def _paceline(nproc: int, root: Path) -> float:
    overrides = [
        "train.epochs=1",
        "train.max_steps=1",
        "train.schedule.warmup_steps=0",
        "telemetry.log_every=1",
        "evaluate.max_samples=1",
        "precision.mode=fp32",
    ]
    command = [
        sys.executable,
        "-m",
        "paceline",
        "train",
        "sasrec",
        *overrides,
        "--nproc",
        str(nproc),
        "--out",
        str(root),
    ]
    began = time.time()
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise PacelineError("paceline train did not reach its first step", done.stderr[-500:])
    return float(read_run(root).metrics[0]["time"]) - began
