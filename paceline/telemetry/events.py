"""What happened and why, one JSON line each, from any rank or the launcher.

    {"v":1,"time":1760000000.1,"attempt":1,"source":"rank 0","kind":"choice","about":"precision","requested":"auto","effective":"fp32","reason":"…"}

Kinds: start, preflight, resume, plan, choice, note, warning, evaluation, observation, checkpoint, compile, tables, profile, baseline, finding, incident, failure,
restart, end.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from paceline.files import LineWriter
from paceline.telemetry.layout import SCHEMA


class EventLog:
    """Appends events of one source (a rank or the launcher) in one attempt."""

    def __init__(self, path: Path, source: str, attempt: int) -> None:
        self._lines = LineWriter(path)
        self._source = source
        self._attempt = attempt

    def write(self, kind: str, **fields: Any) -> None:
        head = {"v": SCHEMA, "time": time.time(), "attempt": self._attempt, "source": self._source, "kind": kind}
        self._lines.write_record(head | fields)

    def choice(self, about: str, requested: Any, effective: Any, reason: str) -> None:
        """Records what was asked for, what really runs, and why (guarantee 2)."""
        self.write("choice", about=about, requested=requested, effective=effective, reason=reason)

    def close(self) -> None:
        self._lines.close()


class QuietLog(EventLog):
    """For the other ranks: what all ranks do alike is told once, by rank 0."""

    def __init__(self) -> None:
        pass

    def write(self, kind: str, **fields: Any) -> None:
        pass

    def close(self) -> None:
        pass
