"""What the ranks of one host agree on without a word between them: at which step to stop, and that one of them has failed.

A few words of shared memory beside the pulses. Rank 0 names a step that no rank can have ended yet; every rank sees it when it gets
there, because a step of data-parallel training ends on no rank before every rank has begun it.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_SIZE = 64
_STOP, _FAILED, _HEARD = 0, 1, 2
_POLL_S = 0.01


class Agreement:
    """One per rank, all on the same words; a word holds 0 until it is said."""

    def __init__(self, directory: Path, *, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = os.open(directory / "agreement", flags, 0o600)
        try:
            if create:
                os.posix_fallocate(descriptor, 0, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("q")

    @property
    def stop_step(self) -> int | None:
        """After which step all ranks stop; None while nobody has asked."""
        return self._words[_STOP] or None

    @stop_step.setter
    def stop_step(self, step: int | None) -> None:
        self._words[_STOP] = step or 0

    @property
    def failed_rank(self) -> int | None:
        """The first rank other than 0 that said it failed."""
        return self._words[_FAILED] - 1 if self._words[_FAILED] else None

    def tell_failure(self, rank: int, patience_s: float) -> None:
        """Says so, and waits until rank 0 has written it down: this rank's end is the end of rank 0, too."""
        if not self._words[_FAILED]:
            self._words[_FAILED] = rank + 1
        deadline = time.monotonic() + patience_s
        while not self._words[_HEARD] and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def hear_failure(self) -> None:
        """Rank 0 has written it down."""
        self._words[_HEARD] = 1

    def close(self) -> None:
        self._words.release()
        self._map.close()
