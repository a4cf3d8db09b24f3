"""Reads a growing file of the run directory a piece at a time: each call returns the whole lines that are new since the last one.

events = Follower(layout.events)
events.records()      -> [{"kind": "plan", …}]        and later: []        and later: [{"kind": "evaluation", …}]
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from paceline.telemetry.tables import parse_rows

_MOST_BYTES = 1 << 22


class Follower:
    """Remembers how far a file has been read; a line that is still being written waits for the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._header: list[str] | None = None

    def lines(self) -> list[str]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data.decode("utf-8", "replace").splitlines()

    def skip(self) -> None:
        """Passes over what is there already, however much it is."""
        while self.lines():
            pass

    def records(self) -> list[dict[str, Any]]:
        """New lines as JSON objects; damaged ones are passed over."""
        found = []
        for line in self.lines():
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict):
                    found.append(record)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """New lines as rows of a table, whose first line is its header."""
        lines = self.lines()
        if self._header is None and lines:
            self._header = lines.pop(0).split(",")
        return parse_rows(self._header or [], lines)
