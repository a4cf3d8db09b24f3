"""The first signs of life of a rank whose launcher is ours: its pulse, and the offer to write its stacks, before it imports torch.

A rank that is stopped or hangs in its imports, or while the ranks look for each other, is seen like any other. A library may want the
signal for itself, at any time: a thread looks after that, because a request that reaches another handler may end the process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time

from paceline.errors import UsageError
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory
from paceline.telemetry.run_file import load_run_file
from paceline.telemetry.stack_file import StackFile, answer_requests

_CHECK_S = 0.25


def give_signs(arguments: argparse.Namespace) -> PulseWriter | None:
    """None where the directory is not claimed yet, or something is wrong with it, which is said by those who take it."""
    rank = os.environ.get("RANK", "0")
    if arguments.attempt is None or arguments.out is None or not rank.isdecimal():
        return None
    with contextlib.suppress(UsageError, OSError):
        run = load_run_file(arguments.out)
        if run is not None and run.attempts and run.attempts[-1].attempt == arguments.attempt:
            return open_signs(RunLayout(arguments.out.absolute()), run.id, int(rank), arguments.attempt)
    return None


def open_signs(layout: RunLayout, run_id: str, rank: int, attempt: int) -> PulseWriter:
    """OSError where there is no room for a pulse."""
    pulse = PulseWriter(create_pulse_directory(run_id, attempt), rank, attempt)
    stacks = answer_requests(layout.stacks(rank), rank, attempt)
    if stacks is not None:
        threading.Thread(target=_guard, args=(stacks,), name="stack-guard", daemon=True).start()
    return pulse


def _guard(stacks: StackFile) -> None:
    while True:
        time.sleep(_CHECK_S)
        with contextlib.suppress(OSError):
            stacks.check_handler()
