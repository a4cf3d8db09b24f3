"""Whether a configuration's loader keeps up: time to the first batch, samples and bytes a second without the model, against what a
step needs when it never waits for data.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.bench.ranks import run_ranks
from paceline.config.contradictions import Facts
from paceline.config.overrides import parse_overrides
from paceline.errors import ConfigError, PacelineError, Problem, error_from_record
from paceline.files import read_records
from paceline.launch.placement import place_ranks
from paceline.recipes.job import load_job
from paceline.telemetry.layout import RunLayout
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
    _check(target, overrides)
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


def _check(target: str, overrides: Sequence[str]) -> None:
    """Refuses what the bench would ignore, and, with the same words, what the training would refuse."""
    given = parse_overrides(overrides).entries
    own = {text.partition("=")[0] for text in _SHORT} | {"launch.nproc", "run.out"}
    problems = [
        Problem(
            f"the bench itself sets {key}: it measures {_STEPS} steps of one rank", given[key].origin, "leave it out"
        )
        for key in given
        if key in own
    ]
    if problems:
        raise ConfigError(problems=problems)
    job = load_job(target, [*overrides, *_SHORT], {"launch.nproc": (1, "the bench")})
    placement = place_ranks(job.config.launch, job.origins["launch.gpus"])
    job.check(Facts(placement.world_size, placement.num_gpus))
    job.identity()


def _train(target: str, overrides: Sequence[str], root: Path) -> dict[str, float]:
    """A step without its waiting for data, from a short run."""
    command = [sys.executable, "-m", "paceline", "train", target, *overrides, *_SHORT]
    command += ["--nproc", "1", "--out", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise _explain(done.stderr, root, command)
    run = read_run(root)
    rows = run.timed[1:] or run.timed
    step_ms = statistics.median(row["step_ms"] for row in rows)
    busy_ms = statistics.median(row["step_ms"] - row["data_ms"] for row in rows)
    batch = statistics.median(row["samples_per_s"] * row["step_ms"] / 1e3 for row in rows)
    return {
        "step_ms": round(step_ms, 3),
        "data_ms": round(step_ms - busy_ms, 3),
        "samples_per_s": round(batch / busy_ms * 1e3, 3),
    }


def _explain(stderr: str, root: Path, command: Sequence[str]) -> PacelineError:
    """Why the training ended: what its ranks recorded, else the last that it said."""
    for event in read_records(RunLayout(root).events):
        if event.get("kind") == "failure" and not event.get("secondary") and event.get("problems"):
            return error_from_record(event)
    last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "it said nothing")
    return PacelineError(
        f"the measured run failed: {last.strip()}", shlex.join(command), "run that command to see more"
    )
