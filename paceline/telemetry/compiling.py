"""A compilation that announces itself: while torch.compile works, whoever asked for it, the pulse says `compile`.

    announcer = CompileAnnouncer(pulse)
    announcer.register()      # False: nothing that compiles has been imported yet; ask again now and then

Imports no torch: it registers with what the process has imported by itself. A rank that compiles for minutes in the middle of a run
would else look like one that hangs.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from paceline.telemetry.pulse import PulseWriter

_MODULE = "torch._dynamo.callback"


class CompileAnnouncer:
    """One per pulse."""

    def __init__(self, pulse: PulseWriter) -> None:
        self._pulse = pulse
        self._handler: Any = None
        self._interrupted: tuple[int, str] | None = None

    def register(self) -> bool:
        """Whether it is registered, from now on or already; torch._dynamo.reset() forgets it, so it is asked again."""
        if self._handler is None:
            self._handler = getattr(sys.modules.get(_MODULE), "callback_handler", None)
        if self._handler is None:
            return False
        if self._on_start not in self._handler.start_callbacks:
            self._handler.register_start_callback(self._on_start)
            self._handler.register_end_callback(self._on_end)
        return True

    def close(self) -> None:
        """Another run in this process has its own."""
        if self._handler is not None:
            with contextlib.suppress(ValueError):  # forgotten already
                self._handler.remove_start_callback(self._on_start)
                self._handler.remove_end_callback(self._on_end)
            self._handler = None

    def _on_start(self, _: Any) -> None:
        self._interrupted = (self._pulse.step, self._pulse.phase)
        self._pulse.beat(self._pulse.step, "compile")

    def _on_end(self, _: Any) -> None:
        # One that was under way when we registered, which may be done from another thread, has interrupted nothing that we know of.
        if self._interrupted is not None:
            self._pulse.beat(*self._interrupted)
            self._interrupted = None
