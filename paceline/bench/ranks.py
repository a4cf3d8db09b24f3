"""Starts the ranks of a measurement and takes the JSON that rank 0 prints at the end.

run_ranks("paceline.bench.telemetry_blocks", {"pairs": 10, "root": "…"}, nproc=2)   -> {"step_ms": 30.1, …}
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from paceline.cores import cpu_count
from paceline.errors import PacelineError

_ERROR = re.compile(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception|Exit|Interrupt)\b")


def run_ranks(module: str, settings: Mapping[str, Any], nproc: int, threads: int | None = None) -> dict[str, Any]:
    """`threads` are a rank's; without it, the cores are divided among the ranks."""
    start = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc), "-m"] if nproc > 1 else ["-m"]
    )
    command = [sys.executable, *start, module, json.dumps(settings)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads or max(1, cpu_count() // nproc))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    try:
        if done.returncode == 0:
            # The last of ours: libraries print what they like beside it.
            told: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
            return told
    except (IndexError, json.JSONDecodeError):
        pass
    raise PacelineError(
        f"the measured run failed: {find_cause(done.stderr)}", " ".join(command), "run that command to see more"
    )


def find_cause(stderr: str) -> str:
    """The error of the rank that spoke first; what torchrun says of it at the end is no more than that it failed."""
    lines = stderr.strip().splitlines() or ["it said nothing"]
    errors = [line for line in lines if _ERROR.match(line) and "ChildFailedError" not in line]
    return (errors or lines[-1:])[0]
