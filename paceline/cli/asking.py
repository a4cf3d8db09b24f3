"""Asks a worker process for what only torch can tell or do: one line of JSON comes back, or its error, typed as it was there.

ask_worker(["paceline.worker.model", "export", "runs/a", "--to", "…"])   -> {"step": 256, …}
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.errors import PacelineError, UsageError, error_from_record
from paceline.launch.death import KILLED_DO, describe_signal
from paceline.telemetry.failure import parse_failure


def can_ask() -> bool:
    """Whether torch is installed; looked up, not imported."""
    return importlib.util.find_spec("torch") is not None


def ask_worker(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    otherwise: str = "",
) -> dict[str, Any]:
    """What the module `arguments[0]` of the worker answers; `otherwise` is what one can do where it has no answer."""
    if not can_ask():
        raise UsageError("this needs torch, which is not installed here", sys.executable, otherwise or "install torch")
    command = [sys.executable, "-m", *arguments]
    shown = " ".join(command)
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=os.environ | dict(environment or {}),
        )
    except subprocess.TimeoutExpired:
        do = f"{otherwise}, or look at what it does" if otherwise else "look at what it does"
        raise PacelineError(f"the worker did not answer within {timeout_s} s", shown, do) from None
    if child.returncode != 0:
        raise read_failure(child.stderr, child.returncode, shown, otherwise)
    try:
        answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError) as error:
        raise PacelineError("the worker gave no answer", shown, otherwise or "run that command to see more") from error
    return answer


def read_failure(stderr: str, code: int, where: str, otherwise: str = "") -> PacelineError:
    """The error that a worker left on its standard error, or what ended it without a word."""
    lines = stderr.splitlines()
    for line in reversed(lines):
        record = parse_failure(line)
        if record is not None:
            error = error_from_record(record)
            if record.get("traceback"):
                error.add_note(f"in the worker:\n{record['traceback']}")  # for --debug
            return error
    last = next((line for line in reversed(lines) if line.strip()), "")
    if code < 0:
        what = f"the worker was killed by {describe_signal(-code)}" + (f"; its last line was: {last}" if last else "")
        do = KILLED_DO if code == -signal.SIGKILL else "run that command to see more"
    else:
        what, do = f"the worker failed: {last or 'it said nothing'}", "run that command to see more"
    return PacelineError(what, where, do + (f", or {otherwise}" if otherwise else ""))


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Says on a terminal what one waits for."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
