"""The supervisor as its launcher has it: started beside the ranks, heard through a pipe, ended with the attempt.

supervisor = SupervisorProcess(layout, attempt=1, settings=settings)
supervisor.incidents      -> [{"finding": {…}, "incident": "0001-stall-rank3", "action": "killed", …}]
supervisor.close()
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from paceline.parentage import die_with_parent
from paceline.supervise.settings import Settings
from paceline.telemetry.incident_line import parse_incident
from paceline.telemetry.layout import RunLayout

_LAST_LOOK_S = 10.0


class SupervisorProcess:
    """One per attempt; it dies with this process."""

    def __init__(self, layout: RunLayout, attempt: int, settings: Settings) -> None:
        command = [sys.executable, "-m", "paceline.supervise", str(layout.root), "--attempt", str(attempt)]
        command += ["--settings", json.dumps(settings.to_record())]
        self.incidents: list[dict[str, Any]] = []
        """as they were told, the newest last; one that was acted upon is told again"""
        with contextlib.ExitStack() as files:
            try:
                errors: Any = files.enter_context(open(layout.supervisor_log, "ab"))
            except OSError:
                errors = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        self._reader = threading.Thread(target=self._listen, name="supervisor-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self, *, is_hasty: bool = False) -> None:
        """The attempt is over. It looks once more, at who has died and how, unless the ranks are sent away by us."""
        self._process.send_signal(signal.SIGKILL if is_hasty else signal.SIGTERM)
        try:
            self._process.wait(_LAST_LOOK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=2)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                record = parse_incident(line.decode("utf-8", "replace").rstrip("\n"))
                if record is not None:
                    self.incidents.append(record)
