"""The supervisor as its launcher has it: started when the training begins, heard through a pipe, ended with the attempt.

supervisor = SupervisorProcess(layout, 1, pulses, settings)
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.parentage import die_with_parent
from paceline.supervise.settings import Settings
from paceline.telemetry.events import EventLog
from paceline.telemetry.incident_line import parse_incident
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import read_pulse

_START_S = 20.0
"""at most, until the first step: the ranks import torch, and want the cores more than a supervisor does, which has little to see yet"""
_LAST_LOOK_S = 10.0
_GONE_S = 2.0
_MOST_STARTS = 4


class SupervisorProcess:
    """One per attempt and host; it dies with this process, and is replaced when it dies by itself."""

    def __init__(
        self,
        layout: RunLayout,
        attempt: int,
        pulses: Path,
        settings: Settings,
        ranks: Sequence[int] | None = None,
        host_index: int = 0,
    ) -> None:
        """`ranks`: those of this host, where a run has several; `pulses`: this host's. `host_index` 0: the host that owns the run."""
        command = [sys.executable, "-m", "paceline.supervise", str(layout.root), "--attempt", str(attempt)]
        command += ["--settings", json.dumps(settings.to_record()), "--pulses", str(pulses)]
        command += ["--host-index", str(host_index)]
        if ranks is not None:
            command += ["--ranks", ",".join(map(str, ranks))]
        self._command = command
        self._first_rank = min(ranks) if ranks else 0
        self._log = layout.supervisor_log_of(host_index)
        self._layout = layout
        self._attempt = attempt
        self._pulses = pulses
        self._latest = time.monotonic() + _START_S
        self.incidents: list[dict[str, Any]] = []
        """as they were told, the newest last; one that was acted upon is told again"""
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None: the training has not begun."""
        return self._process.pid if self._process is not None else None

    def check(self) -> None:
        """Several times a second: a supervisor that was killed, or failed, is replaced; one that has nothing to do here is not."""
        is_missing = self._process.poll() if self._process is not None else self._has_begun()
        if not is_missing or self._starts > _MOST_STARTS:
            return
        self._starts += 1
        if self._starts <= _MOST_STARTS:
            self._start()
        else:
            self._give_up()

    def close(self, *, is_hasty: bool = False) -> None:
        """The attempt is over. It looks once more, at who has died and how, unless the ranks are sent away by us."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL if is_hasty else signal.SIGTERM)
        try:
            self._process.wait(_LAST_LOOK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # on a disk that does not answer nobody can be killed
                self._process.wait(_GONE_S)
        self._reader.join(timeout=2)

    def _has_begun(self) -> bool:
        pulse = read_pulse(self._pulses, self._first_rank)
        return (pulse is not None and pulse.step > 0) or time.monotonic() >= self._latest

    def _start(self) -> None:
        with contextlib.ExitStack() as files:
            try:
                errors: Any = files.enter_context(open(self._log, "ab"))
            except OSError:
                errors = subprocess.DEVNULL
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=functools.partial(die_with_parent, os.getpid()),
                )
            except (OSError, subprocess.SubprocessError):  # no memory or no process left: no reason to end the training
                return
        self._reader = threading.Thread(target=self._listen, args=(self._process,), name="supervisor", daemon=True)
        self._reader.start()

    def _give_up(self) -> None:
        """Somebody may count on us."""
        code = self._process.poll() if self._process is not None else None
        how = "it could not be started" if code is None else f"its supervisor ended with {code}"
        log = self._log.relative_to(self._layout.root)
        with contextlib.suppress(OSError):
            events = EventLog(self._layout.events, "launcher", self._attempt)
            why = f"{how}, {_MOST_STARTS} times; see {log}"
            events.write("warning", what="nobody supervises this attempt any more", why=why)
            events.close()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                record = parse_incident(line.decode("utf-8", "replace").rstrip("\n"))
                if record is not None:
                    self.incidents.append(record)
