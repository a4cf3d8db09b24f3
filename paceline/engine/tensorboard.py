"""Scalars for TensorBoard, written by a thread of their own: neither its import (0.4 s) nor its disk is in the way of a step."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path

_Item = tuple[int, float, dict[str, float]]


class TensorBoard:
    """Appends scalars to an event file below `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)
        self._thread.start()

    def add(self, step: int, scalars: Mapping[str, float | None]) -> None:
        known = {name: float(value) for name, value in scalars.items() if value is not None}
        self._queue.put((step, time.time(), known))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:
            self.error = error

    def _write_all(self) -> None:
        item = self._queue.get()
        if item is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = EventFileWriter(str(self._directory))
        while item is not None:
            step, when, scalars = item
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
            writer.add_event(Event(wall_time=when, step=step, summary=Summary(value=values)))
            item = self._queue.get()
        writer.close()
