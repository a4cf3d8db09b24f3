"""Whether what was saved may be seen: the result of a step is read while the next one runs, and its files while that one is judged.

approval.grant(100)          # the training: everything up to step 100 is good
approval.await_step(100)     # the thread that writes: True as soon as it is, False if it never will be
"""

from __future__ import annotations

import threading


class Approval:
    """Up to which step a run's results are good."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._step = 0
        self._is_over = False

    def grant(self, step: int) -> None:
        with self._changed:
            self._step = step
            self._changed.notify()

    def end(self) -> None:
        """What has not been approved never will be."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def await_step(self, step: int) -> bool:
        with self._changed:
            while self._step < step and not self._is_over:
                self._changed.wait()
            return self._step >= step
