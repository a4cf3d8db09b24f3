"""What each stage of sharding leaves on a rank, and what it costs: weights, gradients and moments in bytes, a step and a save in ms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.errors import PacelineError

STAGES = (0, 1, 2, 3)
PARTS = ("weights", "gradients", "moments")


def measure(
    parameters: float = 1e7, nproc: int = 2, steps: int = 12, stages: Sequence[int] = STAGES, engine: str = "torch"
) -> Iterator[dict[str, Any]]:
    """One run of the dense model per stage, on so many ranks; see sharded.py for what it tells."""
    for stage in stages:
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
            settings = {"parameters": round(parameters), "stage": stage, "steps": steps, "root": f"{scratch}/run"}
            settings["engine"] = engine
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
            command = [sys.executable, *launch, "-m", "paceline.bench.sharded", json.dumps(settings)]
            threads = os.environ.get("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // nproc)))
            environment = os.environ | {"OMP_NUM_THREADS": threads}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode != 0 or not lines:
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                where = " ".join(command)
                raise PacelineError(f"the run at stage {stage} failed: {last}", where, "run that command to see more")
            yield summarize(json.loads(lines[-1]))


def summarize(told: dict[str, Any]) -> dict[str, Any]:
    """The most that any rank holds, in MiB, beside the rest."""
    held = {f"{part}_mib": max(rank[part] for rank in told["ranks"]) / 2**20 for part in PARTS}
    total = max(sum(rank[part] for part in PARTS) for rank in told["ranks"]) / 2**20
    peak = max(rank["peak"] for rank in told["ranks"]) / 2**20
    return {
        **{name: told[name] for name in ("device", "backend", "parameters", "stage")},
        "nproc": len(told["ranks"]),
        **{name: round(value, 2) for name, value in held.items()},
        "total_mib": round(total, 2),
        "peak_mib": round(peak, 2) if peak else None,
        "step_ms": round(told["step_ms"], 2),
        "stall_ms": round(told["stall_ms"], 2),
    }
