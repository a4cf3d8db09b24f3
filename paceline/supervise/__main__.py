"""The supervisor as a process beside a run.

    python -m paceline.supervise RUN --attempt 2 --settings '{"policy": "halt"}'

Started by `paceline train`. Each incident is also a line on standard output, which needs no disk. SIGTERM says that the attempt is over:
it looks once more, and ends. Where a watcher supervises the run already, it waits until that has gone.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

_AGAIN_S = 1.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m paceline.supervise", description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--settings", default="{}", help="the section `supervise`, as JSON")
    arguments = parser.parse_args(argv)
    parent = os.getppid()
    signals = _Signals()

    # Only now: an attempt may end while we import, and how is looked at all the same.
    from paceline.files import Lock
    from paceline.supervise.settings import settings_from
    from paceline.supervise.supervisor import Supervisor
    from paceline.telemetry.layout import RunLayout
    from paceline.telemetry.run_file import load_run_file

    layout, run = RunLayout(arguments.run), load_run_file(arguments.run)
    attempts = [each for each in run.attempts if each.attempt == arguments.attempt] if run is not None else []
    if run is None or not attempts:
        print(f"{arguments.run} has no attempt {arguments.attempt}", file=sys.stderr)
        return 2
    lock = Lock(layout.supervisor_lock)
    if not lock.acquire_within(2.0):  # whoever supervised the attempt before may be about to end
        print(f"{arguments.run} is supervised by another process: waiting until that has gone", file=sys.stderr)
        while not lock.acquire():
            if signals.wait(_AGAIN_S) or os.getppid() != parent or not _is_running(arguments.run, arguments.attempt):
                return 0
    supervisor = Supervisor(layout, run, attempts[0], settings_from(json.loads(arguments.settings)), _tell)
    supervisor.wake_on(signals.descriptor)
    try:
        while supervisor.is_running and os.getppid() == parent:
            is_last = signals.is_over
            supervisor.poll()
            if is_last:
                break
            supervisor.wait()
        supervisor.close()
    except Exception as error:
        supervisor.give_up(error)
        raise
    return 0


def _is_running(root: Path, attempt: int) -> bool:
    from paceline.errors import UsageError
    from paceline.telemetry.run_file import load_run_file

    try:
        run = load_run_file(root)
    except (UsageError, OSError):
        return True  # it cannot be told at this moment
    last = run.attempts[-1] if run is not None and run.attempts else None
    return last is not None and last.attempt == attempt and last.state == "running"


class _Signals:
    """What the launcher has to say."""

    def __init__(self) -> None:
        self.is_over = False
        self.descriptor, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGTERM, self._catch)

    def wait(self, seconds: float) -> bool:
        """Until then, or until there is a word; whether it is over."""
        select.select([self.descriptor], [], [], seconds)
        return self.is_over

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.is_over = True
        os.write(self._wake, b"!")


def _tell(record: Mapping[str, Any]) -> None:
    from paceline.telemetry.incident_line import format_incident

    print(format_incident(record), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
