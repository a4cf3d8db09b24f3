"""The supervisor as its launcher has it: started when the ranks are up, heard through a pipe, ended with the attempt.

supervisor = SupervisorProcess(layout, attempt=1, settings=settings)
supervisor.check()        # several times a second
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
import time
from typing import Any

from paceline.parentage import die_with_parent
from paceline.supervise.settings import Settings
from paceline.telemetry.incident_line import parse_incident
from paceline.telemetry.layout import RunLayout

_START_S = 10.0
"""for the ranks to come up: they import torch, and want the cores more than a supervisor does, which has nothing to see yet"""
_LAST_LOOK_S = 10.0
_REPLACEMENTS = 3


class SupervisorProcess:
    """One per attempt; it dies with this process, and is replaced when it dies by itself."""

    def __init__(self, layout: RunLayout, attempt: int, settings: Settings) -> None:
        command = [sys.executable, "-m", "paceline.supervise", str(layout.root), "--attempt", str(attempt)]
        self._command = [*command, "--settings", json.dumps(settings.to_record())]
        self._layout = layout
        self._began = time.time()
        self._latest = time.monotonic() + _START_S
        self.incidents: list[dict[str, Any]] = []
        """as they were told, the newest last; one that was acted upon is told again"""
        self._replaced = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None: the ranks are not up yet."""
        return self._process.pid if self._process is not None else None

    def check(self) -> None:
        """Several times a second: a supervisor that was killed, or failed, is replaced; one that has nothing to do here is not."""
        if self._process is None:
            if self._is_up():
                self._start()
        elif self._process.poll() and self._replaced < _REPLACEMENTS:
            self._replaced += 1
            self._start()

    def close(self, *, is_hasty: bool = False) -> None:
        """The attempt is over. It looks once more, at who has died and how, unless the ranks are sent away by us."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL if is_hasty else signal.SIGTERM)
        try:
            self._process.wait(_LAST_LOOK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=2)

    def _is_up(self) -> bool:
        """Whether a rank of this attempt has got beyond its imports: it has printed something, or its heart beats."""
        for sign in (self._layout.heartbeat(0), self._layout.log(0)):
            with contextlib.suppress(OSError):
                if sign.stat().st_mtime >= self._began:
                    return True
        return time.monotonic() >= self._latest

    def _start(self) -> None:
        with contextlib.ExitStack() as files:
            try:
                errors: Any = files.enter_context(open(self._layout.supervisor_log, "ab"))
            except OSError:
                errors = subprocess.DEVNULL
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), name="supervisor", daemon=True)
        self._reader.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                record = parse_incident(line.decode("utf-8", "replace").rstrip("\n"))
                if record is not None:
                    self.incidents.append(record)
