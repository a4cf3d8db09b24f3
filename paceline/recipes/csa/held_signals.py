"""Ctrl-C, SIGTERM and a terminal that closes, held back until the work is at a place where it can be left. No torch.

with HeldSignals() as held:
    while work:
        with held.deaf_children():
            start_process()                # whole, or not at all
        held.check()                       # KeyboardInterrupt here, and nowhere else

Left to Python, the exception comes between any two instructions: where a process is being started, which then finds half of what it
needs and says so in a traceback; in a function that a C library calls, where nobody catches it. Blocking the signals is not enough:
another thread, such as that of a progress bar, takes them, and the exception comes all the same.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldSignals:
    """Counts what asks for the end; what was ignored stays so. Python lets the main thread alone handle signals: elsewhere none come.

    `second_raises`: the second one is held back no more, wherever it comes; for work that nobody else can end.
    """

    def __init__(self, second_raises: bool = False) -> None:
        self.count = 0
        self._second_raises = second_raises
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> HeldSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:
            self.check()  # what came after the last look

    def check(self) -> None:
        """The place where an interruption is welcome."""
        if self.count:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def deaf_children(self) -> Iterator[None]:
        """Processes that are started meanwhile hear none of the signals, which reach a whole group: this one does, and ends them."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._second_raises and self.count > 1:
            raise KeyboardInterrupt
