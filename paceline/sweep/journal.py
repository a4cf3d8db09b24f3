"""driver.log: every line that a sweep's driver says, with its time, and the same lines on standard output."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from paceline.files import LineWriter


class Journal:
    """Says things; a disk that is full, or a reader that has gone, is no reason to end a sweep."""

    def __init__(self, path: Path) -> None:
        self._lines: LineWriter | None = None
        with contextlib.suppress(OSError):
            self._lines = LineWriter(path)

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(text, flush=True)
        if self._lines is not None:
            with contextlib.suppress(OSError):
                self._lines.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
