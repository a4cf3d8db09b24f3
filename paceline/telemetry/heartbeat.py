"""Heartbeats: one JSON line per beat per rank, written by a small thread inside the rank.

{"v":1,"time":…,"rank":1,"host":"a","pid":4711,"attempt":1,"step":120,"phase":"backward","samples":15360,"loss":3.2,
 "step_ms":{"p50":8.1,"p90":8.4},"phase_ms":{"data":0.1,…},"wait_ms":2.5,"memory_gib":1.2,
 "gpu":{"util":97,"clock_mhz":1980,"power_w":410}}
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.files import LineWriter
from paceline.telemetry.layout import SCHEMA


class BeatWriter:
    """Writes beats of one rank in one attempt."""

    def __init__(self, path: Path, rank: int, attempt: int) -> None:
        self._lines = LineWriter(path)
        self._head = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "attempt": attempt}

    def write(self, fields: dict[str, Any]) -> None:
        self._lines.write_record({"v": SCHEMA, "time": time.time()} | self._head | fields)

    def close(self) -> None:
        self._lines.close()


class Heartbeat:
    """Writes what `collect` returns every `interval_s`, and once at the start and at the end.

    Whatever goes wrong (a full disk) is kept in `error` for the training thread to raise; the thread then ends.
    """

    def __init__(
        self, path: Path, rank: int, attempt: int, interval_s: float, collect: Callable[[], dict[str, Any]]
    ) -> None:
        self._beats = BeatWriter(path, rank, attempt)
        self._interval_s = interval_s
        self._collect = collect
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes the last beat and ends the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                # Asked before collecting: the last beat shows how things stand after the request to end.
                is_last = self._ended.is_set()
                self._beats.write(self._collect())
                self._ended.wait(self._interval_s)
        except Exception as error:
            self.error = error
        finally:
            self._beats.close()
