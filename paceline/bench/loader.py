"""Whether a configuration's loader keeps up: time to the first batch, samples and bytes a second without the model, against what a
step needs when it never waits for data.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.bench.ranks import run_ranks
from paceline.errors import UsageError
from paceline.telemetry.reader import read_run

_WORKERS = (0, 1, 2, 4)
_STEPS = 40
_SHORT = (
    f"train.max_steps={_STEPS}",
    "train.epochs=null",
    "train.schedule.warmup_steps=0",
    "evaluate.every_epochs=null",
    "evaluate.every_steps=null",
    "evaluate.max_samples=1",
    "checkpoint.enabled=false",
    "telemetry.log_every=5",
    "telemetry.tensorboard=false",
)


def measure(target: str, overrides: Sequence[str] = (), seconds: float = 3.0) -> dict[str, Any]:
    """What one rank's training step needs, and what each way to load brings; one rank with the whole global batch."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        need = _train(target, overrides, Path(scratch) / "run")
        settings = {"target": target, "overrides": list(overrides), "workers": _WORKERS, "seconds": seconds}
        told = run_ranks("paceline.bench.loading", settings | {"root": str(Path(scratch) / "loading")}, nproc=1)
    rows = [
        {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
        | {"times_needed": round(row["samples_per_s"] / need["samples_per_s"], 3)}
        for row in told["rows"]
    ]
    return {"target": target, "global_batch": told["global_batch"], **need, "rows": rows}


def _train(target: str, overrides: Sequence[str], root: Path) -> dict[str, float]:
    """A step without its waiting for data, from a short run."""
    short = {text.partition("=")[0] for text in _SHORT}
    mine = [text for text in overrides if text.partition("=")[0] not in short]
    command = [sys.executable, "-m", "paceline", "train", target, *mine, *_SHORT, "--nproc", "1", "--out", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        what, *rest = done.stderr.strip().splitlines() or ["it said nothing"]
        raise UsageError(f"`paceline train` refused: {what}", "; ".join(line.strip() for line in rest), "")
    run = read_run(root)
    rows = run.timed[1:] or run.timed
    step_ms = statistics.median(row["step_ms"] for row in rows)
    busy_ms = statistics.median(row["step_ms"] - row["data_ms"] for row in rows)
    batch = statistics.median(row["samples_per_s"] * row["step_ms"] / 1e3 for row in rows)
    return {
        "step_ms": round(step_ms, 3),
        "data_ms": round(step_ms - busy_ms, 3),
        "samples_per_s": round(batch / busy_ms * 1e3, 1),
    }
