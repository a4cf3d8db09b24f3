"""Asks a worker process for what only torch and the data can tell: the number of parameters and of samples.

ask_sizes("sasrec", ["data.users=10"])   -> {"num_parameters": 52160, "num_train": 10, "num_evaluate": {…}, "details": {…}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.cli.asking import ask_worker

TIMEOUT_S = 600


def ask_sizes(target: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The worker's description of the job; its error, typed as it was there, if it has one."""
    arguments = ["paceline.worker", target, *overrides, "--describe"]
    return ask_worker(arguments, timeout_s=TIMEOUT_S, otherwise="use --no-sizes")
