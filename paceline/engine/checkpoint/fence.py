"""Keeps a save of an attempt that is over from becoming visible in a run that a later attempt owns.

with fence:                  # SaveFailed if this attempt is over; while it lasts, no other can begin
    os.rename(…)
"""

from __future__ import annotations

from types import TracebackType

from paceline.files import Lock, identify_file
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import load_run_file

_LOCK_S = 30.0


class SaveFailed(Exception):
    """A save that came to nothing; the checkpoints before it are untouched."""


class Fence:
    """Around the moment in which a checkpoint of one attempt becomes visible."""

    def __init__(self, layout: RunLayout, attempt: int) -> None:
        self._root, self._run = layout.root, str(layout.run)
        self._attempt = attempt
        self._lock = Lock(layout.attempt_lock)
        self._seen: tuple[int, ...] | None = None
        """of the run.json in which this attempt was the last one"""

    def __enter__(self) -> None:
        # Whoever begins an attempt writes run.json under this lock: either we are visible before it, or we see that we are late.
        try:
            if not self._lock.acquire_within(_LOCK_S):
                raise SaveFailed("somebody holds the lock of the run")
            self._check_attempt()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _check_attempt(self) -> None:
        # The file of last time need not be read again: the training would wait for that.
        found = identify_file(self._run)
        if found is not None and found == self._seen:
            return
        run = load_run_file(self._root)
        if run is None:
            raise SaveFailed("its run.json is not there")
        if run.attempts[-1].attempt != self._attempt:
            raise SaveFailed(f"attempt {self._attempt} is over: a later one owns the run")
        self._seen = found
