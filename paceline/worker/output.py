"""Where a rank's output goes: into its own log from the moment the run directory is known; the terminal it came from is kept.

The descriptors themselves are redirected, so that what C libraries and crash handlers print lands in the log, too.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import TextIO


class Output:
    """The standard output and error that this process was started with, and the log that replaces them."""

    def __init__(self) -> None:
        self.console: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        self._errors = os.dup(2)
        self.log: Path | None = None

    def tell(self, text: str) -> None:
        """One line or block for the launcher, or for the person at the terminal; in one write, because all ranks share the pipe."""
        os.write(self._errors, text.encode() + b"\n")

    def redirect(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        # A crash in C (a segmentation fault, an abort) leaves the Python stacks of all threads in the log.
        faulthandler.enable()
        self.log = log
