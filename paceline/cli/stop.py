"""`paceline stop`: asks all ranks of a running run to stop at one agreed step, and waits until they have.

Exit code 0: it was asked, and where one waits it has stopped, or reached its end; 4: it failed meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, RunDirectory
from paceline.cli.ending import describe_ending
from paceline.errors import PacelineError, UsageError
from paceline.files import Lock, storage_error
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.ownership import unannounced_end
from paceline.telemetry.pulse import read_pulse
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import Attempt, load_run_file
from paceline.telemetry.stop_request import write_stop_request

_POLL_S = 0.1
_SAY_EVERY_S = 5.0


def command(
    run: RunDirectory,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    debug: Debug = False,
) -> None:
    """End a run: all ranks at one agreed step, where they leave a checkpoint.

    Example: paceline stop runs/sasrec-1a2b3c4d
    """
    with _reaching(run):
        _stop(run, wait)


def _stop(run: Path, wait: bool) -> None:
    found = read_run(run)
    layout = RunLayout(run.absolute())
    attempt = found.run.attempts[-1] if found.run.attempts else None
    if attempt is None or not is_running(layout):
        reason = f": {found.run.reason}" if found.run.reason and found.run.reason != found.run.state else ""
        state = unannounced_end(found.run) if found.run.state == "running" else f"{found.run.state}{reason}"
        raise UsageError(f"this run is not running ({state})", str(run), "there is nothing to stop")
    write_stop_request(layout.stop_request, attempt.attempt, "stop_command", "paceline stop")
    print(f"asked attempt {attempt.attempt} (process {attempt.owner_pid}) to stop")
    if wait:
        _say_end(layout, _wait(layout, attempt), unannounced_end(found.run))


@contextlib.contextmanager
def _reaching(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise storage_error(error, run) from error
        what = f"cannot ask this run to stop: no permission to write there ({os.strerror(error.errno)})"
        raise UsageError(what, str(error.filename or run), "use the account that started the run") from error


def is_running(layout: RunLayout) -> bool:
    """Whether somebody owns the run at this moment."""
    lock = Lock(layout.owner_lock)
    try:
        return not lock.acquire(shared=True)
    finally:
        lock.release()


def _wait(layout: RunLayout, attempt: Attempt) -> Attempt:
    """The attempt as it ended; a later one, started at once, is nobody's concern here."""
    said = time.monotonic()
    while True:
        is_owned = is_running(layout)
        run = load_run_file(layout.root)
        attempts = run.attempts if run is not None else [attempt]
        if not is_owned or attempts[-1].attempt != attempt.attempt:
            return next(each for each in attempts if each.attempt == attempt.attempt)
        time.sleep(_POLL_S)
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            pulse = read_pulse(Path(attempt.pulses), 0)
            where = f" (rank 0: step {pulse.step}, {pulse.phase})" if pulse is not None else " (still starting)"
            print(f"waiting for the ranks to stop{where}", file=sys.stderr)


def _say_end(layout: RunLayout, ended: Attempt, unannounced: str) -> None:
    if ended.state not in ("stopped", "finished"):
        at = f" at step {ended.step:,}" if ended.step is not None else ""
        reason = ended.reason or unannounced
        what = f"the run did not stop as asked: it failed{at} ({reason})"
        do = f"see {layout.launcher_log.parent}"
        if is_running(layout):  # it was brought back in the moment in which it was asked
            do = f"ask again, another attempt has begun: paceline stop {layout.root}"
        raise PacelineError(what, str(layout.root), do)
    print(describe_ending(layout, ended.state, ended.reason, ended.step))
