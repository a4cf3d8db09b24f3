"""Asks a worker process for what only torch and the data can tell: the number of parameters and of samples.

ask_sizes("sasrec", ["data.users=10"])   -> {"num_parameters": 52160, "num_train": 10, "num_evaluate": {…}, "details": {…}}
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from paceline.errors import PacelineError, error_from_record
from paceline.telemetry.failure import parse_failure

TIMEOUT_S = 600


def can_ask() -> bool:
    """Whether torch is installed; looked up, not imported."""
    return importlib.util.find_spec("torch") is not None


def ask_sizes(target: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The worker's description of the job; its error, typed as it was there, if it has one."""
    command = [sys.executable, "-m", "paceline.worker", target, *overrides, "--describe"]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        what = f"the worker did not describe the job within {TIMEOUT_S} s"
        raise PacelineError(what, " ".join(command), "use --no-sizes, or look at what it does") from None
    if child.returncode != 0:
        raise read_failure(child.stderr, " ".join(command))
    try:
        described: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError) as error:
        raise PacelineError(
            "the worker printed no description of the job", " ".join(command), "use --no-sizes"
        ) from error
    return described


def read_failure(stderr: str, where: str) -> PacelineError:
    """The error that a worker left on its standard error."""
    lines = stderr.splitlines()
    for line in reversed(lines):
        record = parse_failure(line)
        if record is not None:
            return error_from_record(record)
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return PacelineError(f"the worker failed: {last}", where, "run that command to see more, or use --no-sizes")
