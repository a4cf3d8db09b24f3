"""The small thread that writes what a foreign loop tells: rows, events, heartbeats; and looks whether somebody asks the run to stop.

The training thread hands over and goes on: a slow or full disk is never in its way. What cannot be written is said once, counted, and
tried again a little later; it never reaches the loop as an error.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from paceline.files import storage_error
from paceline.telemetry.events import EventLog
from paceline.telemetry.heartbeat import BeatWriter
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.stop_request import StopRequest, read_stop_request

LOG = logging.getLogger("paceline")
_POLL_S = 0.2
_RETRY_S = 10.0
_MOST_WAITING = 10_000
_CLOSE_S = 15.0

Job = Callable[[], None]


class Scribe:
    """One thread per rank; `attach` opens what it writes to, and may have to be tried for a while."""

    def __init__(
        self, layout: RunLayout, rank: int, heartbeat_s: float, collect: Callable[[], dict[str, Any]], watch: Job
    ) -> None:
        self.stop_request: StopRequest | None = None
        self.events: EventLog | None = None
        self._layout = layout
        self._rank = rank
        self._heartbeat_s = heartbeat_s
        self._collect = collect
        self._watch = watch
        self._attempt: int | None = None
        self._beats: BeatWriter | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._num_lost = 0
        self._retry_at = 0.0
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="paceline-sdk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def attach(self, attempt: int) -> None:
        """From now on there is an attempt to write to."""
        self.events = EventLog(self._layout.events, f"rank {self._rank}", attempt)
        self._beats = BeatWriter(self._layout.heartbeat(self._rank), self._rank, attempt)
        self._attempt = attempt

    def hand(self, job: Job) -> None:
        """Something to write, soon; costs the caller a microsecond."""
        if self._jobs.qsize() < _MOST_WAITING:
            self._jobs.put(job)
        else:
            self._num_lost += 1

    def write_event(self, kind: str, **fields: Any) -> None:
        self.hand(lambda: self._event(kind, fields))

    def say(self, about: str, text: str) -> None:
        """One warning about each thing, on the program's log and in the events."""
        if about not in self._said:
            self._said.add(about)
            LOG.warning("%s", text)
            self.write_event("warning", what=text)

    def hasten(self) -> None:
        """The end is near: what could not be written a moment ago is tried again now."""
        self._retry_at = 0.0

    def close(self) -> None:
        """Writes what is left, and a last beat."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            left = self._jobs.qsize()
            LOG.warning("after %g s not everything about this run is written: %d records are left", _CLOSE_S, left)

    def _run(self) -> None:
        self._try(self._look)  # what is handed over first has somewhere to go
        next_beat = next_look = 0.0
        is_last = False
        while not is_last:
            try:
                job = self._jobs.get(timeout=_POLL_S)
                is_last = job is None
            except queue.Empty:
                job = None
            if job is not None:
                self._try(job)
            now = time.monotonic()
            if now >= next_look or is_last:
                next_look = now + _POLL_S
                self._try(self._look, is_writing=False)
            if (now >= next_beat or is_last) and self._beats is not None:
                next_beat = now + self._heartbeat_s
                self._try(self._beat)
        while not self._jobs.empty():  # what was said while the last ones were written
            job = self._jobs.get()
            if job is not None:
                self._try(job)
        if self._num_lost:
            LOG.warning("%d records about this run are missing: they could not be written", self._num_lost)
        for writer in (self.events, self._beats):
            if writer is not None:
                writer.close()

    def _look(self) -> None:
        self._watch()
        if self.stop_request is None and self._attempt is not None:
            self.stop_request = read_stop_request(self._layout.stop_request, self._attempt)

    def _beat(self) -> None:
        assert self._beats is not None
        self._beats.write(self._collect())

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        if self.events is None:
            self._num_lost += 1
        else:
            self.events.write(kind, **fields)

    def _try(self, job: Job, *, is_writing: bool = True) -> None:
        if time.monotonic() < self._retry_at and is_writing:
            self._num_lost += 1
            return
        try:
            job()
        except OSError as error:
            self._num_lost += 1
            self._retry_at = time.monotonic() + _RETRY_S
            problem = storage_error(error, self._layout.root).problems[0]
            self._say_lost(f"cannot write about this run: {problem.what} ({problem.where})")
        except Exception as error:
            self._say_lost(f"cannot write about this run: {type(error).__name__}: {error}")
        else:
            if is_writing:
                self._confess()

    def _say_lost(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            LOG.warning("%s; the training goes on, and so does trying", text)

    def _confess(self) -> None:
        """Writing works again: the record says that it has a gap."""
        if self._num_lost and self.events is not None:
            what, self._num_lost = f"{self._num_lost} records about this run are missing", 0
            self._try(lambda: self._event("warning", {"what": what, "why": "they could not be written"}))
