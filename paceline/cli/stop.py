"""`paceline stop`: asks all ranks of a running run to stop at one agreed step, and waits until they have."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from paceline.errors import UsageError
from paceline.files import Lock, storage_errors
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import read_pulse
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import Attempt, load_run_file
from paceline.telemetry.stop_request import write_stop_request

_POLL_S = 0.1
_SAY_EVERY_S = 5.0


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as `paceline train` printed it.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """End a run: all ranks at one agreed step.

    Example: paceline stop runs/sasrec-1a2b3c4d
    """
    found = read_run(run)
    layout = RunLayout(run.absolute())
    attempt = found.run.attempts[-1] if found.run.attempts else None
    if attempt is None or not is_running(layout):
        reason = f": {found.run.reason}" if found.run.reason and found.run.reason != found.run.state else ""
        state = "its launcher was killed" if found.run.state == "running" else f"{found.run.state}{reason}"
        raise UsageError(f"this run is not running ({state})", str(run), "there is nothing to stop")
    with storage_errors(run):
        write_stop_request(layout.stop_request, attempt.attempt, "stop_command", "paceline stop")
    print(f"asked attempt {attempt.attempt} (process {attempt.owner_pid}) to stop")
    if wait:
        _wait(layout, attempt)


def is_running(layout: RunLayout) -> bool:
    """Whether somebody owns the run at this moment."""
    lock = Lock(layout.owner_lock)
    try:
        return not lock.acquire(shared=True)
    finally:
        lock.release()


def _wait(layout: RunLayout, attempt: Attempt) -> None:
    said = time.monotonic()
    while is_running(layout):
        time.sleep(_POLL_S)
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            pulse = read_pulse(Path(attempt.pulses), 0)
            where = f" (rank 0: step {pulse.step}, {pulse.phase})" if pulse is not None else " (still starting)"
            print(f"waiting for the ranks to stop{where}", file=sys.stderr)
    ended = load_run_file(layout.root)
    last = ended.attempts[attempt.attempt - 1] if ended is not None else attempt
    at = f" at step {last.step:,}" if last.step is not None else ""
    print(f"{last.state}{at} ({last.reason})")
