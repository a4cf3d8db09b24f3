"""The supervisor as a process beside a run.

    python -m paceline.supervise RUN --attempt 2 --settings '{"policy": "halt"}'
    python -m paceline.supervise RUN --attempt 2 --ranks 2,3 --host-index 1 --pulses /dev/shm/paceline-a1b2-2

Started by `paceline train`, one on each host. Each incident is also a line on standard output, which needs no disk. SIGTERM says that the attempt is over:
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
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

_AGAIN_S = 1.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m paceline.supervise", description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--settings", default="{}", help="the section `supervise`, as JSON")
    parser.add_argument("--ranks", type=_parse_ranks, help="those of this host; default: as run.json says, or all")
    parser.add_argument("--host-index", type=int, default=0, help="of this host; 0: the one that owns the run")
    parser.add_argument("--pulses", type=Path, help="this host's; default: as run.json says")
    arguments = parser.parse_args(argv)
    parent = os.getppid()
    signals = _Signals()

    # Only now: an attempt may end while we import, and how is looked at all the same.
    from paceline.files import Lock
    from paceline.supervise.settings import settings_from
    from paceline.supervise.station import station_of
    from paceline.supervise.supervisor import Supervisor
    from paceline.telemetry.layout import RunLayout
    from paceline.telemetry.run_file import load_run_file

    layout, run = RunLayout(arguments.run), load_run_file(arguments.run)
    attempts = [each for each in run.attempts if each.attempt == arguments.attempt] if run is not None else []
    if run is None or not attempts:
        print(f"{arguments.run} has no attempt {arguments.attempt}", file=sys.stderr)
        return 2
    attempt = attempts[0]
    if arguments.pulses is not None:
        attempt = replace(attempt, pulses=str(arguments.pulses))
    station = station_of(attempt, arguments.host_index, arguments.ranks)
    lock = Lock(layout.supervisor_lock_of(station.host_index))
    if not lock.acquire_within(2.0):  # whoever supervised the attempt before may be about to end
        print(f"{arguments.run} is supervised by another process: waiting until that has gone", file=sys.stderr)
        while not lock.acquire():
            if signals.wait(_AGAIN_S) or os.getppid() != parent or not _is_running(arguments.run, arguments.attempt):
                return 0
    supervisor = Supervisor(layout, run, attempt, settings_from(json.loads(arguments.settings)), _tell, station)
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


def _parse_ranks(text: str) -> list[int]:
    """`2,3`."""
    return [int(word) for word in text.split(",") if word]


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
