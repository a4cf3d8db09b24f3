"""What the operator asks of a running launcher: the first Ctrl-C or SIGTERM asks to stop, the second to kill.

What was ignored when the launcher started stays ignored: SIGHUP under nohup, SIGINT in a shell's background job.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType

WORDS = {"ctrl_c": "Ctrl-C", "sigterm": "SIGTERM"}
_REASONS = {signal.SIGINT: "ctrl_c", signal.SIGTERM: "sigterm", signal.SIGHUP: "sigterm"}


class OperatorSignals:
    """Counts signals while it is entered; acts on nothing."""

    def __init__(self) -> None:
        self.asked: str | None = None
        """ctrl_c or sigterm, whichever came first"""
        self.wants_kill = False
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> OperatorSignals:
        for number in _REASONS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: FrameType | None) -> None:
        # A terminal that closes sends SIGHUP more than once: it asks to stop, and never to kill.
        self.wants_kill = self.wants_kill or (self.asked is not None and number != signal.SIGHUP)
        self.asked = self.asked or _REASONS[signal.Signals(number)]
